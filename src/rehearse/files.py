"""Writing to the disk.

A file that is replaced is the old one or the new one, complete, whatever kills the process. What is appended is
appended whole or not at all. Bytes of a mapped file change in `overwrite` alone.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from numpy.typing import NDArray


def sync(path: Path) -> None:
    """Return when the content of a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[io.BufferedWriter]:
    """Open a file that takes the place of ``path`` once it is complete and on the disk; after an error nothing is left.

    A link stays a link, and a file keeps its mode; a new one has ``mode``, less what the process masks. Errors of the
    system name ``path`` and say what is there now.
    """
    outcome = "what was there before is untouched"
    place = Path(os.path.realpath(path))
    temporary = place.parent / f".{place.name}.{secrets.token_hex(4)}.tmp"
    try:
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, "it is neither a regular file nor a link to one")
        with open(os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            if place.exists():
                os.fchmod(file.fileno(), place.stat().st_mode & 0o777)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, place)
        outcome = "the new file is in place, but a power failure may undo that"
        sync(place.parent)  # a renamed file is safe only when its directory is synced too
    except BaseException as problem:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        if isinstance(problem, OSError) and problem.errno is not None:
            raise OSError(problem.errno, f"{problem.strerror}; {outcome}", str(path)) from problem
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a text file, replacing what was there; a pipe or a terminal is written to directly."""
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_text(text, "utf-8")
        return
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def append(path: Path, content: bytes) -> None:
    """Append all of this to a file, or, if the disk is full, nothing."""
    with open(path, "r+b", buffering=0) as file:
        size, left = file.seek(0, os.SEEK_END), memoryview(content)
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(size)
            raise


def reserve(descriptor: int, size: int) -> None:
    """Give an empty file its size, with room on the disk: a mapped page that finds none kills the process."""
    if sys.platform == "linux":
        os.posix_fallocate(descriptor, 0, size)
    else:
        os.ftruncate(descriptor, size)


def overwrite(mapped: NDArray[Any], where: Any, values: Any) -> None:
    """Write into a mapped file."""
    mapped[where] = values


def lock(file: IO[Any] | int) -> bool:
    """Lock an open file for this process, if no other has; the system unlocks it however the process ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlock(descriptor: int, process: int) -> None:
    """Unlock a file of which there may be copies of the descriptor, unless a forked child asks: it shares the lock."""
    if process == os.getpid():
        fcntl.flock(descriptor, fcntl.LOCK_UN)


def remove_unfinished(path: Path) -> None:
    """Remove what a process left that was killed while it wrote ``path``."""
    for unfinished in path.parent.glob(f".{path.name}.*.tmp"):
        unfinished.unlink(missing_ok=True)
