"""Data sets on disk, each read and checked by its own module."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

from rehearse.errors import DataError
from rehearse.lab.extensions import find
from rehearse.lab.streams.datasets import cifar10, digits5k, miniimagenet, mnist
from rehearse.lab.streams.datasets.base import Dataset

__all__ = ["DATASETS", "Dataset", "load"]

DATASETS: Final[Mapping[str, Any]] = {
    "mnist": mnist, "cifar10": cifar10, "miniimagenet": miniimagenet, "digits5k": digits5k,
}  # fmt: skip
"""Modules with TITLE, HOW to come by it, find, load and checks, and fetch if it can be downloaded."""


def load(name: str, data_dir: str | PathLike[str] | None = None, split_seed: int = 0) -> Dataset:
    """The data set of that name; ``split_seed`` matters only where testing images are drawn (digits5k)."""
    if data_dir is not None and not Path(data_dir).expanduser().is_dir():
        raise DataError(f"there is no directory {data_dir}; leave data_dir out to look in REHEARSE_DATA and the cache")
    dataset: Dataset = find(DATASETS, "data set", name).load(split_seed if name == "digits5k" else data_dir)
    return dataset
