"""Mini-ImageNet (Vinyals et al. 2016; lists of Ravi & Larochelle 2017): a folder of JPEGs and three lists.

    miniimagenet/images/*.jpg
    miniimagenet/train.csv  miniimagenet/val.csv  miniimagenet/test.csv      (columns: filename,label)

All 100 classes of the three lists, in their order; of each class the first 80 % of its list are for training,
the rest for testing. The JPEGs are decoded once, into an array on disk that is memory-mapped afterwards.
"""

from __future__ import annotations

import csv
import os
import struct
import tempfile
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rehearse.errors import DataError
from rehearse.lab.extras import needs
from rehearse.lab.streams.datasets import base
from rehearse.lab.streams.datasets.base import Check, Dataset, cache_directory, digest, find_folder, read_file

TITLE, HOW = "Mini-ImageNet", "by hand; rehearse data fetch miniimagenet explains it"

SIDE = 84
TRAINING_SHARE = 0.8
PIXELS = 40_000_000  # of a picture, before and after it is resized: 120 MB
LIST_BYTES = 20_000_000  # of a list with half a million names
LISTS = MappingProxyType(
    {
        "train.csv": "md5:9525e1538f67719f18f1936bf8d0782d",
        "val.csv": "md5:ce315ce99b41fbf84fa6acd69315d918",
        "test.csv": "md5:5b89df877c6cbe5d291e43118a2a9591",
    }
)
ADVICE = (
    "Mini-ImageNet cannot be downloaded automatically: put its 60,000 JPEG files into "
    "DIR/miniimagenet/images/ and the lists train.csv, val.csv and test.csv of Ravi & Larochelle "
    "(columns filename,label) into DIR/miniimagenet/, where DIR is --data-dir or REHEARSE_DATA"
)


def load(data_dir: str | PathLike[str] | None = None) -> Dataset:
    """All images of the three lists, decoded once and memory-mapped."""
    folder = find(data_dir)
    entries = read_lists(folder)
    names = list(dict.fromkeys(label for _, label in entries))
    number = {label: k for k, label in enumerate(names)}
    y = np.array([number[label] for _, label in entries], dtype=np.int64)
    training = np.zeros(len(y), dtype=bool)
    for label in range(len(names)):
        rows = np.flatnonzero(y == label)
        training[rows[: round(TRAINING_SHARE * len(rows))]] = True
    return Dataset(
        x=decoded(folder, [file for file, _ in entries]),
        y=y,
        train=np.flatnonzero(training),
        test=np.flatnonzero(~training),
        n_classes=len(names),
    )


def find(data_dir: str | PathLike[str] | None = None) -> Path:
    """The first folder that has the three lists and the images."""
    return find_folder("Mini-ImageNet", ["miniimagenet"], [*LISTS, "images"], ADVICE, data_dir)


def checks(data_dir: str | PathLike[str] | None) -> Iterator[Check]:
    """Look at every list, and whether the images are there."""
    folder = find(data_dir)
    for name, checksum in LISTS.items():
        path = folder / name
        yield base.checked(path, base.check_digest, path, read_file(path, ADVICE, LIST_BYTES), checksum, ADVICE)
    files = [file for file, _ in read_lists(folder)]
    lacking = [file for file in files if not (folder / "images" / file).is_file()]
    problem = f"{len(lacking):,} of {len(files):,} images are missing, {lacking[0]} first" if lacking else None
    yield Check(folder / "images", problem)


def read_lists(folder: Path) -> list[tuple[str, str]]:
    """File name and class of every image: the classes of train.csv first, then val.csv, then test.csv."""
    entries: list[tuple[str, str]] = []
    for name in LISTS:
        text = read_file(folder / name, ADVICE, LIST_BYTES).decode("utf-8", errors="replace")
        lines = list(csv.reader(text.splitlines()))
        if not lines or lines[0] != ["filename", "label"]:
            raise DataError(f"{folder / name} must begin with the line filename,label. {ADVICE}")
        for number, line in enumerate(lines[1:], start=2):
            if len(line) != 2 or Path(line[0]).name != line[0] or not line[0] or not line[1]:
                raise DataError(f"{folder / name}, line {number}: expected a file name and a label, found {line}")
            entries.append((line[0], line[1]))
    if not entries:
        raise DataError(f"the three lists in {folder} name no image. {ADVICE}")
    return entries


def decoded(folder: Path, files: list[str], on_progress: Callable[[int, int], None] | None = None) -> NDArray[np.uint8]:
    """The images as one memory-mapped array, decoded now if they never were.

    The array lies beside the images, or in the user's cache where that directory cannot be written; its name
    holds a checksum of the lists, so that other lists get another array. Delete it to have the images decoded
    anew.
    """
    shape = (len(files), 3, SIDE, SIDE)
    name = f"images-{SIDE}-{digest(chr(10).join(files).encode(), 'sha256')[:16]}.npy"
    places = [folder / name, cache_directory() / "miniimagenet" / name]
    for path in places:
        if path.is_file():
            return _open(path, shape)
    path = next((place for place in places if _writable(place.parent)), places[-1])
    _decode_into(path, folder / "images", files, shape, on_progress)
    return _open(path, shape)


def read_image(path: Path) -> NDArray[np.uint8]:
    """One image, its shorter side resized to 84, the middle 84 × 84 of it, as (3, 84, 84)."""
    with needs("pillow", "lab"):
        from PIL import Image
    try:
        # other formats are not only pictures: some start programs
        with Image.open(path, formats=("JPEG", "PNG")) as file:
            width, height = file.size
            short = min(width, height)
            if max(width * height, SIDE * SIDE * max(width, height) // short) > PIXELS:
                raise DataError(f"its {width:,} × {height:,} pixels are too many")
            picture = file.convert("RGB")
    except (OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError) as problem:
        raise DataError(f"{path} is missing, truncated or no image ({problem}). {ADVICE}") from problem
    if short != SIDE:
        size = (max(SIDE, width * SIDE // short), max(SIDE, height * SIDE // short))
        picture = picture.resize(size, Image.Resampling.BILINEAR)
    left, top = (picture.width - SIDE) // 2, (picture.height - SIDE) // 2
    return np.asarray(picture.crop((left, top, left + SIDE, top + SIDE))).transpose(2, 0, 1)


def _decode_into(
    path: Path,
    images: Path,
    files: list[str],
    shape: tuple[int, ...],
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Write under a temporary name, then rename: an interrupted decoding leaves nothing that looks whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=path.stem, suffix=".part", dir=path.parent)
    os.close(handle)
    try:
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=shape)
        for row, file in enumerate(files):
            array[row] = read_image(images / file)
            if on_progress is not None:
                on_progress(row + 1, len(files))
        array.flush()
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _open(path: Path, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError, TypeError, SyntaxError, OverflowError) as problem:
        raise DataError(f"{path} is damaged ({problem}); delete it, and the images are decoded anew") from problem
    if array.shape != shape or array.dtype != np.uint8:
        raise DataError(f"{path} is not the {shape} bytes of the lists; delete it, and the images are decoded anew")
    return array


def _writable(folder: Path) -> bool:
    return folder.is_dir() and os.access(folder, os.W_OK)
