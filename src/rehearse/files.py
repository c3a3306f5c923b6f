"""Writing to the disk.

A file that is replaced is the old one or the new one, complete, whatever kills the process and whenever the power
fails. Everything that has to survive is written by the functions of this module, which reach the system through its
``os`` alone: the tests put a disk that fails and forgets in its place.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def opened(path: Path, flags: int = os.O_RDWR, mode: int = 0o666) -> Iterator[int]:
    """Open a file or a directory, and close its descriptor."""
    descriptor = os.open(path, flags, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync(path: Path) -> None:
    """Return when the content of a file, or the names in a directory, are on the disk."""
    with opened(path, os.O_RDONLY) as descriptor:
        flush(descriptor)


def flush(descriptor: int) -> None:
    """Return when the content of an open file is on the disk."""
    os.fsync(descriptor)


def write_at(descriptor: int, content: Any, position: int) -> int:
    """Write bytes at a position of an open file, however many the system takes at once; return where they end."""
    left = memoryview(content).cast("B")
    while left:
        written = os.pwrite(descriptor, left, position)
        left, position = left[written:], position + written
    return position


def check_regular(path: Path) -> None:
    """Refuse a device or a pipe: writing would replace it, and reading would wait for somebody to write."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is neither a regular file nor a link to one")


def replace_file(path: Path, *parts: Any, mode: int = 0o666, size: int = 0) -> None:
    """Write a file that takes the place of ``path`` once it is complete and on the disk.

    After an error nothing is left of it, and what a killed process left is removed. A link stays a link, and a file
    keeps its mode; a new one has ``mode``, less what the process masks. Errors of the system name ``path`` and say what
    is there now.

    Args:
        path: The place.
        parts: The content, as bytes.
        mode: Of a new file.
        size: At least so many bytes are reserved on the disk.
    """
    outcome = "what was there before is untouched"
    place = Path(os.path.realpath(path))
    temporary = place.parent / f".{place.name}.{secrets.token_hex(4)}.tmp"
    try:
        check_regular(path)
        _remove_unfinished(place)
        with opened(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, mode) as descriptor:
            with contextlib.suppress(OSError):  # not every file system knows locks
                lock(descriptor)  # says that it is being written
            if place.exists():
                os.fchmod(descriptor, place.stat().st_mode & 0o777)
            if size and sys.platform == "linux":
                os.posix_fallocate(descriptor, 0, size)
            elif size:
                os.ftruncate(descriptor, size)
            end = 0
            for part in parts:
                end = write_at(descriptor, part, end)
            flush(descriptor)
            os.replace(temporary, place)
            with contextlib.suppress(OSError):
                unlock(descriptor, os.getpid())  # not by closing it, which an interrupt may prevent
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
    replace_file(path, text.encode("utf-8"))


def append(path: Path, content: bytes, size: int) -> int:
    """Append bytes to a file of this size; return its new size when all of it is on the disk.

    What is there beyond the size, as a call that failed may have left it, is cut off. A file is made if the size is 0.
    """
    with opened(path, os.O_RDWR | (0 if size else os.O_CREAT)) as descriptor:
        os.ftruncate(descriptor, size)
        end = write_at(descriptor, content, size)
        flush(descriptor)
    return end


def remove(path: Path) -> None:
    """Remove a file, if it is there; it does not come back when the power fails."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        sync(path.parent)


def make_folder(path: Path) -> None:
    """Make a directory, and those above it that are missing, on the disk."""
    if not path.is_dir():
        make_folder(path.parent)
        with contextlib.suppress(FileExistsError):  # another process has made it in the meantime
            os.mkdir(path)
        sync(path.parent)


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


def _remove_unfinished(place: Path) -> None:
    """Remove what processes left that were killed while they wrote ``place``: it may hold samples."""
    for name in os.listdir(place.parent):
        if name.startswith(f".{place.name}.") and name.endswith(".tmp"):
            with contextlib.suppress(OSError), opened(place.parent / name) as descriptor:
                if lock(descriptor):
                    os.unlink(place.parent / name)
