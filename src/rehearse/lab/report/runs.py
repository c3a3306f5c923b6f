"""Which runs a report is about: result files, keys, or directories, as a person names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import DataError, InvalidInput
from ..campaign.store import KEY, OnDamaged, read_result
from ..spec import Spec

TRIALS = "tune"


@dataclass(frozen=True)
class FinishedRun:
    """A result and the folder beside it, which may be missing: `results/` holds the key files only."""

    spec: Spec
    result: Mapping[str, Any]
    folder: Path


def find_runs(words: Sequence[str], out: Path, on_damaged: OnDamaged | None = None) -> list[FinishedRun]:
    """The runs that the words name, each once; without words everything in ``out``.

    Where a result lies in several places, one with pictures beside it counts. A file that is no result is refused if
    it was named itself or there is no ``on_damaged``; otherwise it is reported there and left out.
    """
    places = [(path, Path(word).is_dir()) for word in words for path in _paths(word, out)]
    places = places if words else [(path, True) for path in _inside(out)]
    found: dict[str, FinishedRun] = {}
    for path, looked_for in places:
        if path.stem in found and not (_has_pictures(path) and not _has_pictures(found[path.stem].folder)):
            continue
        try:
            found[path.stem] = _read(path)
        except DataError as problem:
            if on_damaged is None or not looked_for:
                raise
            on_damaged(problem)
    if not found:
        raise InvalidInput(f"there is no result in {', '.join(words) or out}; `rehearse run` makes some")
    return list(found.values())


def _has_pictures(path: Path) -> bool:
    """Beside a result file, or in its folder."""
    return (path.with_suffix("") / "images").is_dir()


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
    result = read_result(path)
    return FinishedRun(Spec.from_dict(result["spec"]), result, path.with_suffix(""))
