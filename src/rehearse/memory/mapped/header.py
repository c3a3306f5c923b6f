"""The header of a file of samples, and the lock on the file."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ...errors import CheckpointError, InvalidInput

MAGIC: Final = b"REHROWS\0"
VERSION: Final = 1
FIXED: Final = struct.Struct("<8sIIQ16sQ")  # magic, version, length of the layout's text, capacity, name, checksum
COUNTER: Final = struct.Struct("<QQI")  # the last generation given out, the last confirmed, a checksum; rewritten
PAGE: Final = 4096


class Header:
    """What comes before the rows: the layout, the file's own name, and the count of its checkpoints."""

    def __init__(self, layout: str, capacity: int, name: bytes, last: int = 0, confirmed: int = 0) -> None:
        """Describe a file; ``size`` is where its rows begin."""
        self.layout, self.capacity, self.name = layout, capacity, name
        self.last, self.confirmed = last, confirmed
        self.size = -(-(FIXED.size + COUNTER.size + len(layout.encode())) // PAGE) * PAGE

    def content(self) -> bytes:
        """Return the header as bytes."""
        text = self.layout.encode()
        checksum = zlib.crc32(text + self.name + struct.pack("<IQ", VERSION, self.capacity))
        fixed = FIXED.pack(MAGIC, VERSION, len(text), self.capacity, self.name, checksum)
        return fixed + counter(self.last, self.confirmed) + text

    @classmethod
    def read(cls, descriptor: int, path: Path) -> Header:
        """Read the header of an open file, or refuse it."""
        content = os.pread(descriptor, FIXED.size + COUNTER.size, 0)
        if len(content) < FIXED.size + COUNTER.size or content[: len(MAGIC)] != MAGIC:
            raise CheckpointError(f"{path} is not a file of a memory's samples")
        _, version, length, capacity, name, _ = FIXED.unpack_from(content)
        last, confirmed, _ = COUNTER.unpack_from(content, FIXED.size)
        if version > VERSION:
            raise CheckpointError(f"{path} has format version {version}, written by a newer rehearse")
        text = os.pread(descriptor, length, FIXED.size + COUNTER.size)
        header = cls(text.decode(errors="replace"), capacity, name, last, confirmed)
        if header.content() != content + text:
            raise CheckpointError(f"the header of {path} is damaged")
        return header


def counter(last: int, confirmed: int) -> bytes:
    """Return the counters of checkpoints as bytes."""
    return COUNTER.pack(last, confirmed, zlib.crc32(struct.pack("<QQ", last, confirmed)))


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_RDWR) -> Iterator[int]:
    """Open a file for the block."""
    try:
        descriptor = os.open(path, flags, 0o600)
    except OSError as problem:
        raise InvalidInput(f"cannot open {path}: {problem.strerror}") from problem
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def lock(descriptor: int, path: Path) -> None:
    """Lock the file: two memories that write to one file would undo each other."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        raise InvalidInput(
            f"{path} is in use by another memory, here or in another process; close it first (memory.close())"
        ) from problem


def release(descriptor: int, process: int) -> None:
    """Close the file, and unlock it in the process that locked it: a forked child shares the lock."""
    if process == os.getpid():
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # the mapping has a copy of the descriptor and may live a little longer
    os.close(descriptor)
