"""Data sets on disk, each read and checked by its own module."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from rehearse.errors import DataError, InvalidInput
from rehearse.lab.streams.datasets import cifar10, digits5k, miniimagenet, mnist
from rehearse.lab.streams.datasets.base import Dataset

__all__ = ["NAMES", "Dataset", "load"]

NAMES = ("mnist", "cifar10", "miniimagenet", "digits5k")


def load(name: str, data_dir: str | PathLike[str] | None = None, split_seed: int = 0) -> Dataset:
    """The data set of that name; ``split_seed`` matters only where testing images are drawn (digits5k)."""
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise DataError(f"there is no directory {data_dir}; leave data_dir out to look in REHEARSE_DATA and the cache")
    if name == "digits5k":
        return digits5k.load(split_seed)
    if name not in NAMES:
        raise InvalidInput(f"there is no data set {name!r}; there are {', '.join(NAMES)}")
    return {"mnist": mnist.load, "cifar10": cifar10.load, "miniimagenet": miniimagenet.load}[name](data_dir)
