"""CIFAR-10 (Krizhevsky 2009), from its binary version or the python version that torchvision uses."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rehearse.errors import DataError
from rehearse.lab.streams.datasets.base import (
    Dataset,
    check_content,
    check_digest,
    not_found,
    read_file,
    search_path,
)

IMAGE = (3, 32, 32)
PIXELS = 3 * 32 * 32
ROWS = 10000  # in each of the six files
ADVICE = "`rehearse data fetch cifar10` downloads it anew"
GET = "`rehearse data fetch cifar10` downloads it; --data-dir or REHEARSE_DATA say where it is"


class Version(NamedTuple):
    """One form of the data set: where it lies, and its files with their checksums, the test file last."""

    folders: tuple[str, ...]
    files: Mapping[str, str]


BINARY = Version(
    ("cifar10/cifar-10-batches-bin", "cifar-10-batches-bin"),
    MappingProxyType(
        {
            "data_batch_1.bin": "sha256:cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "data_batch_2.bin": "sha256:a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "data_batch_3.bin": "sha256:bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "data_batch_4.bin": "sha256:014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "data_batch_5.bin": "sha256:755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "test_batch.bin": "sha256:8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
        }
    ),
)
PYTHON = Version(
    ("cifar10/cifar-10-batches-py", "cifar-10-batches-py"),
    MappingProxyType(
        {
            "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
            "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
            "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "md5:40351d587109b95175f43aff81a1287e",
        }
    ),
)


def load(data_dir: str | PathLike[str] | None = None) -> Dataset:
    """The 60,000 images: 50,000 to train on, then 10,000 to test on."""
    folder, version = find(data_dir)
    read = read_binary if version is BINARY else read_python
    x = np.empty((len(version.files) * ROWS, *IMAGE), dtype=np.uint8)
    y = np.empty(len(x), dtype=np.int64)
    for start, (name, checksum) in zip(range(0, len(x), ROWS), version.files.items(), strict=True):
        pixels, labels = read(folder / name, checksum)
        x[start : start + ROWS] = pixels.reshape(-1, *IMAGE)
        y[start : start + ROWS] = labels
    first_test = len(x) - ROWS
    return Dataset(x=x, y=y, train=np.arange(first_test), test=np.arange(first_test, len(x)), n_classes=10)


def find(data_dir: str | PathLike[str] | None = None) -> tuple[Path, Version]:
    """The first place that has all six files of a version, the binary one preferred in each directory."""
    lacking = {}
    for root in search_path(data_dir):
        for version in (BINARY, PYTHON):
            for place in (root / folder for folder in version.folders):
                lacking[place] = [name for name in version.files if not (place / name).is_file()]
                if not lacking[place]:
                    return place, version
    raise not_found("CIFAR-10", lacking, GET)


def read_binary(path: Path, checksum: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels and labels of a binary file: per image one byte for the label and 3 × 32 × 32 for the pixels."""
    content = read_file(path, ADVICE)
    check_content(path, content, ROWS * (1 + PIXELS), checksum, ADVICE)
    records = np.frombuffer(content, dtype=np.uint8).reshape(ROWS, 1 + PIXELS)
    return _checked(path, records[:, 1:], records[:, 0])


def read_python(path: Path, checksum: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels and labels of a pickled file, which is not unpickled before its checksum is found right."""
    content = read_file(path, ADVICE)
    check_digest(path, content, checksum, ADVICE)
    record = _ArraysOnly(io.BytesIO(content), encoding="bytes").load()
    pixels, labels = np.asarray(record[b"data"]), np.asarray(record[b"labels"])
    if pixels.shape != (ROWS, PIXELS) or pixels.dtype != np.uint8 or labels.shape != (ROWS,):
        raise DataError(f"{path} does not hold {ROWS:,} images of {PIXELS:,} bytes with labels; {ADVICE}")
    return _checked(path, pixels, labels)


class _ArraysOnly(pickle.Unpickler):
    """Unpickles numbers, strings, containers and numpy arrays, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("numpy", "ndarray"):
            return np.ndarray
        if (module, name) == ("numpy", "dtype"):
            return _dtype
        if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
            return np.empty(0).__reduce__()[0]  # wherever this numpy keeps it
        if (module, name) == ("_codecs", "encode"):  # how Python 3 pickles bytes for Python 2
            import _codecs

            return _codecs.encode
        raise DataError(f"a CIFAR-10 file asks for {module}.{name}, which has no place in it; {ADVICE}")


def _dtype(kind: Any, align: Any = False, copy: Any = False) -> np.dtype[Any]:
    """A dtype as the old files spell it, with 0 and 1 where today's numpy insists on False and True."""
    known: np.dtype[Any] = np.dtype(kind, align=bool(align), copy=bool(copy))
    return known


def _checked(
    path: Path, pixels: NDArray[np.uint8], labels: NDArray[Any]
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    if labels.min() < 0 or labels.max() > 9:
        raise DataError(f"{path} holds labels outside 0 to 9; {ADVICE}")
    return pixels, labels.astype(np.uint8)
