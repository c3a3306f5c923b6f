"""Which runs a report is about: result files, keys, or directories, as a person names them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..campaign.store import read_result
from ..errors import DataError, InvalidInput
from ..spec import Spec

KEY = re.compile(r"[0-9a-f]{16}")
TRIALS = "tune"


@dataclass(frozen=True)
class FinishedRun:
    """A result and the folder beside it, which may be missing: `results/` holds the key files only."""

    spec: Spec
    result: Mapping[str, Any]
    folder: Path


def find_runs(words: Sequence[str], out: Path) -> list[FinishedRun]:
    """The runs that the words name, each once; without words everything in ``out``."""
    paths: dict[str, Path] = {}
    for path in [path for word in words for path in _paths(word, out)] if words else _inside(out):
        paths.setdefault(path.stem, path)
    if not paths:
        raise InvalidInput(f"there is no result in {', '.join(words) or out}; `rehearse run` makes some")
    return [_read(path) for path in paths.values()]


def find_run(word: str, out: Path) -> Path:
    """The result file of a run: a path, or the first digits of its key in ``out``."""
    if Path(word).is_file():
        return Path(word)
    found = sorted(path for path in out.glob("*.json") if KEY.fullmatch(path.stem) and path.stem.startswith(word))
    if not found:
        raise InvalidInput(f"there is no run {word!r} in {out}")
    if len(found) > 1:
        raise InvalidInput(f"{len(found)} runs begin with {word!r} in {out}; give more digits")
    return found[0]


def _paths(word: str, out: Path) -> Iterable[Path]:
    place = Path(word)
    if not place.is_dir():
        return [find_run(word, out)]
    if KEY.fullmatch(place.name) and place.with_name(f"{place.name}.json").is_file():
        return [place.with_name(f"{place.name}.json")]
    return _inside(place)


def _inside(directory: Path) -> list[Path]:
    """All results below a directory, but for the trials of `rehearse tune`, which are not meant to be compared."""
    found = (path for path in directory.rglob("*.json") if KEY.fullmatch(path.stem))
    return sorted(path for path in found if TRIALS not in path.relative_to(directory).parts[:-1])


def _read(path: Path) -> FinishedRun:
    """The run in a file; what a report computes with is checked here, so that the rest may rely on it."""
    result = read_result(path)
    try:
        matrix = result["matrices"]["test"]
        numbers = [*result["metrics"].values(), *result["cost"].values(), *(entry for row in matrix for entry in row)]
        square = len(matrix) > 0 and all(len(row) == len(matrix) for row in matrix)
        if not square or not all(value is None or _is_number(value) for value in numbers):
            raise ValueError("its accuracy matrix, metrics or cost are no numbers")
        accuracy, seconds = result["metrics"]["accuracy"], result["cost"]["seconds"]
        if not _is_number(seconds) or (accuracy is not None and not 0 <= accuracy <= 1):
            raise ValueError("an accuracy is a fraction, and seconds are a number")
        dict(result["environment"])
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        raise DataError(f"{path} is no result of a run ({problem}); move it away and run again") from problem
    return FinishedRun(Spec.from_dict(result["spec"]), result, path.with_suffix(""))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
