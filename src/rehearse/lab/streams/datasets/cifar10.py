"""CIFAR-10 (Krizhevsky 2009), from its binary version."""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from rehearse.errors import DataError
from rehearse.lab.streams.datasets.base import Check, Dataset, check_content, checked, find_folder, read_file
from rehearse.lab.streams.datasets.download import Progress, Remote, download, extract

TITLE, HOW = "CIFAR-10, 162 MB to download", "rehearse data fetch cifar10"

IMAGE = (3, 32, 32)
PIXELS = 3 * 32 * 32
ROWS = 10000  # in each of the six files
ADVICE = "`rehearse data fetch cifar10` downloads it anew"
GET = "Run `rehearse data fetch cifar10`, or name its directory by --data-dir or REHEARSE_DATA"
ARCHIVE = Remote(
    "cifar-10-binary.tar.gz",
    ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
    "md5:c32a1d4ab5d03f1284b67883e8d87530",
)
FOLDERS = ("cifar10/cifar-10-batches-bin", "cifar-10-batches-bin")
FILES = MappingProxyType(
    {
        "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
        "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
        "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
        "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
        "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
        "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    }
)  # the test file last


def load(data_dir: str | PathLike[str] | None = None) -> Dataset:
    """The 60,000 images: 50,000 to train on, then 10,000 to test on."""
    folder = find(data_dir)
    x = np.empty((len(FILES) * ROWS, *IMAGE), dtype=np.uint8)
    y = np.empty(len(x), dtype=np.int64)
    for start, (name, checksum) in zip(range(0, len(x), ROWS), FILES.items(), strict=True):
        pixels, labels = read_binary(folder / name, checksum)
        x[start : start + ROWS] = pixels.reshape(-1, *IMAGE)
        y[start : start + ROWS] = labels
    first_test = len(x) - ROWS
    return Dataset(x=x, y=y, train=np.arange(first_test), test=np.arange(first_test, len(x)), n_classes=10)


def find(data_dir: str | PathLike[str] | None = None) -> Path:
    """The first place that has all six files."""
    return find_folder("CIFAR-10", FOLDERS, FILES, GET, data_dir)


def fetch(root: Path, on_progress: Progress | None) -> None:
    """Download and unpack the files."""
    archive = download(ARCHIVE, root / "cifar10", on_progress)
    extract(archive, archive.parent)
    archive.unlink()


def checks(data_dir: str | PathLike[str] | None) -> Iterator[Check]:
    """Look at every file."""
    folder = find(data_dir)
    for name, checksum in FILES.items():
        yield checked(folder / name, read_binary, folder / name, checksum)


def read_binary(path: Path, checksum: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels and labels of a binary file: per image one byte for the label and 3 × 32 × 32 for the pixels."""
    content = read_file(path, ADVICE, 2 * ROWS * PIXELS)
    check_content(path, content, ROWS * (1 + PIXELS), checksum, ADVICE)
    records = np.frombuffer(content, dtype=np.uint8).reshape(ROWS, 1 + PIXELS)
    if records[:, 0].max() > 9:
        raise DataError(f"{path} holds labels outside 0 to 9; {ADVICE}")
    return records[:, 1:], records[:, 0]
