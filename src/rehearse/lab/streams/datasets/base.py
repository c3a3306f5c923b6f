"""What the data sets share: the arrays they become, where they are looked for, how a file is trusted."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rehearse.errors import DataError
from rehearse.lab.extras import needs
from rehearse.lab.limits import read_limited


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Images with labels, and which rows are for training and which for testing.

    ``x`` is uint8 (images, channels, height, width), in memory or memory-mapped; ``y`` is int64, 0 to
    n_classes − 1.
    """

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    train: NDArray[np.int64]
    test: NDArray[np.int64]
    n_classes: int


@dataclass(frozen=True, slots=True)
class Check:
    """A file (or folder) that was looked at, and what is wrong with it, or None."""

    path: Path
    problem: str | None


def checked(path: Path, look: Callable[..., object], *arguments: Any) -> Check:
    """What ``look`` finds wrong with a file."""
    try:
        look(*arguments)
    except DataError as problem:
        return Check(path, str(problem))
    return Check(path, None)


def cache_directory() -> Path:
    """The user's cache directory for data."""
    with needs("pooch", "lab"):
        import pooch
    return Path(pooch.os_cache("rehearse"))


def search_path(data_dir: str | PathLike[str] | None = None) -> list[Path]:
    """Where data is looked for: the given directory, REHEARSE_DATA, the user's cache directory."""
    given = [data_dir, os.environ.get("REHEARSE_DATA"), cache_directory()]
    return list(dict.fromkeys(Path(place).expanduser() for place in given if place))


def find_folder(
    title: str, folders: Iterable[str], names: Iterable[str], advice: str, data_dir: str | PathLike[str] | None
) -> Path:
    """The first place that has all files and folders of these names, compressed or not."""
    lacking = {}
    for place in (root / folder for root in search_path(data_dir) for folder in folders):
        lacking[place] = [name for name in names if present(place, name) is None]
        if not lacking[place]:
            return place
    partly = [f"{place} lacks {', '.join(names)}" for place, names in lacking.items() if place.is_dir()]
    raise DataError(
        f"{title} not found in {', '.join(map(str, lacking))}{''.join(f'; {one}' for one in partly)}. {advice}"
    )


def present(folder: Path, name: str) -> Path | None:
    """The file or folder of that name, compressed or not."""
    return next((path for path in (folder / f"{name}.gz", folder / name) if path.exists()), None)


def digest(content: bytes, algorithm: str) -> str:
    """The checksum of bytes, in hexadecimal."""
    return hashlib.new(algorithm, content, usedforsecurity=False).hexdigest()


def read_file(path: Path, advice: str, most: int) -> bytes:
    """The bytes of a file that must be there, and hold no more than this."""
    try:
        return read_limited(path, most)
    except DataError as problem:
        raise DataError(f"{problem}: it is another file; {advice}") from problem
    except OSError as problem:
        raise DataError(f"{path} cannot be read ({problem.strerror}); {advice}") from problem


def check_content(path: Path, content: bytes, size: int, checksum: str, advice: str) -> None:
    """Refuse bytes that are not the published ones.

    Every loaded byte is checked, every time: it costs a fraction of a second, and every number depends on it.
    """
    if len(content) != size:
        holds = "more" if len(content) > size else f"{len(content):,} bytes"
        found = f"{path} holds {holds} and should hold {size:,}"
        raise DataError(f"{found}: it is truncated, half downloaded or another file; {advice}")
    check_digest(path, content, checksum, advice)


def check_digest(path: Path, content: bytes, checksum: str, advice: str) -> None:
    """Refuse bytes that have not the checksum, which is "algorithm:hexadecimal"."""
    algorithm, expected = checksum.split(":")
    found = digest(content, algorithm)
    if found != expected:
        wrong = f"its {algorithm} is {found} and should be {expected}"
        raise DataError(f"{path} ({len(content):,} bytes) is corrupted, incomplete or another file: {wrong}; {advice}")
