"""Atomic files: whatever kills the process, the old file or the new one is there, complete."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[io.BufferedWriter]:
    """Open a file that takes the place of ``path`` once it is complete and on the disk; after an error nothing is left.

    A link stays a link, and a file keeps its mode. Errors of the system name ``path``.
    """
    temporary = None
    try:
        place = Path(os.path.realpath(path))
        descriptor, temporary = tempfile.mkstemp(dir=place.parent, prefix=f".{place.name}.", suffix=".tmp")
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask())
        os.replace(temporary, place)
        directory = os.open(place.parent, os.O_RDONLY)  # a renamed file is safe only when its directory is synced too
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except BaseException as problem:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(problem, OSError) and problem.errno is not None:
            raise OSError(problem.errno, problem.strerror, str(path)) from problem
        raise


def write_whole(path: Path, text: str) -> None:
    """Write a text file, replacing what was there; a pipe or a terminal is written to directly."""
    if path.exists() and not path.is_file() and not path.is_dir():
        path.write_text(text, "utf-8")
        return
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def lock(file: IO[Any]) -> bool:
    """Lock an open file for this process, if no other has; the system unlocks it however the process ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove_unfinished(path: Path) -> None:
    """Remove what a process left that was killed while it wrote ``path``."""
    for unfinished in path.parent.glob(f".{path.name}.*.tmp"):
        unfinished.unlink(missing_ok=True)


def _umask() -> int:
    """Return the process's mask for new files, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
