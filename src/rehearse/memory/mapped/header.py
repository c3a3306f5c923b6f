"""The header of a file of samples."""

from __future__ import annotations

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...errors import CheckpointError

MAGIC: Final = b"REHROWS\0"
VERSION: Final = 1
FIXED: Final = struct.Struct("<8sIIQ16sQ")  # magic, version, length of the layout's text, capacity, name, checksum
COUNTER: Final = struct.Struct("<QQI")  # the last generation given out, the last confirmed, a checksum; rewritten
PAGE: Final = 4096


@dataclass
class Header:
    """What comes before the rows: the layout, the file's own name, and the count of its checkpoints."""

    layout: str
    capacity: int
    name: bytes
    last: int = 0  # of all checkpoints that were ever tried
    confirmed: int = 0  # the last that is known to be safe

    @property
    def size(self) -> int:
        """Where the rows begin."""
        return -(-(FIXED.size + COUNTER.size + len(self.layout.encode())) // PAGE) * PAGE

    def content(self) -> bytes:
        """Return the header as bytes."""
        text = self.layout.encode()
        checksum = zlib.crc32(text + self.name + struct.pack("<IQ", VERSION, self.capacity))
        fixed = FIXED.pack(MAGIC, VERSION, len(text), self.capacity, self.name, checksum)
        return fixed + self.counter() + text

    def counter(self) -> bytes:
        """Return the count of checkpoints as bytes, which are at ``FIXED.size``."""
        return COUNTER.pack(self.last, self.confirmed, zlib.crc32(struct.pack("<QQ", self.last, self.confirmed)))

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
