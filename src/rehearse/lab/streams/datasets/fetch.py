"""What `rehearse data` does: list, fetch, verify. It returns plain values and prints nothing."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from rehearse.errors import DataError, MissingExtra
from rehearse.lab.extensions import find
from rehearse.lab.streams.datasets import DATASETS
from rehearse.lab.streams.datasets.base import Check, search_path
from rehearse.lab.streams.datasets.download import Progress


@dataclass(frozen=True, slots=True)
class Status:
    """A data set, and the folder it was found in, or None; ``how`` says how to come by it."""

    name: str
    title: str
    place: Path | None
    how: str


def find_data(name: str, data_dir: str | PathLike[str] | None = None) -> Path:
    """The folder of a data set; one that is not there is an error."""
    place: Path = find(DATASETS, "data set", name).find(data_dir)
    return place


def list_data(data_dir: str | PathLike[str] | None = None) -> list[Status]:
    """Every data set and where it is, without looking into its files."""
    return [Status(name, known.TITLE, _place(known, data_dir), known.HOW) for name, known in DATASETS.items()]


def verify(name: str, data_dir: str | PathLike[str] | None = None) -> list[Check]:
    """Every file of a data set against its published checksum; one that is not there is an error."""
    return list(find(DATASETS, "data set", name).checks(data_dir))


def fetch(name: str, data_dir: str | PathLike[str] | None = None, on_progress: Progress | None = None) -> Path:
    """The folder of the data set, downloaded into the first place of `search_path` unless it is there and right."""
    known = find(DATASETS, "data set", name)
    if _place(known, data_dir) is None or any(check.problem for check in known.checks(data_dir)):
        try:
            if hasattr(known, "fetch"):
                known.fetch(search_path(data_dir)[0], on_progress)
        except OSError as problem:
            raise DataError(f"{known.TITLE} cannot be written ({problem}); choose another --data-dir") from problem
        wrong = [check.problem for check in known.checks(data_dir) if check.problem]
        if wrong:
            raise DataError("; ".join(wrong))
    return find_data(name, data_dir)


def _place(known: Any, data_dir: str | PathLike[str] | None) -> Path | None:
    try:
        place: Path = known.find(data_dir)
    except (DataError, MissingExtra):
        return None
    return place
