"""Pairs of places of a target held against each other, run or not, and on which side of zero they differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from ..paper.outcome import Difference, Outcome
from ..paper.own import CONTROL
from ..paper.target import Entry
from ..statistics import Summary
from .reproduction import number
from .tables import UNDEFINED

Verdict = Literal["ahead", "behind", "open", "not run", "not available"]


@dataclass(frozen=True)
class Comparison:
    """Two places of a target that are compared, and what came of it by metric; nothing where it was not run."""

    target: str
    later: str
    earlier: str
    where: str
    found: Mapping[str, Difference]
    available: bool

    def verdict(self, metric: str = "accuracy", *, better: int = 1) -> Verdict:
        """``better`` is −1 for what should be low."""
        if metric not in self.found:
            return "not run" if self.available else "not available"
        return side(self.found[metric].ours, better)


def side(difference: Summary, better: int = 1) -> Verdict:
    """On which side of zero the whole interval of a difference lies."""
    low, high = difference.interval or (0.0, 0.0)
    if low <= 0 <= high:
        return "open"
    return "ahead" if (low > 0) == (better > 0) else "behind"


def comparisons(outcome: Outcome) -> Iterator[Comparison]:
    """Every pair that the target names, in every place that has both, run or not."""
    target = outcome.target
    entries = {(entry.row, entry.column): entry for entry in target.entries}
    rows, columns = (dict.fromkeys(place[i] for place in entries) for i in (0, 1))
    places = [(pair, column, [(row, column) for row in pair]) for pair in target.pairs for column in columns]
    places += [(pair, row, [(row, column) for column in pair]) for pair in target.column_pairs for row in rows]
    found = {(d.later, d.earlier, d.column, d.metric): d for d in outcome.differences}
    for (later, earlier), where, both in places:
        if not all(place in entries for place in both) or _same(*(entries[place] for place in both)):
            continue
        known = {m: found[later, earlier, where, m] for m in target.metrics if (later, earlier, where, m) in found}
        available = all(entries[place].missing is None for place in both)
        yield Comparison(target.name, later, earlier, where, known, available)


def _same(one: Entry, other: Entry) -> bool:
    """Whether two places show the same numbers of the same runs: nothing to compare."""
    return replace(one, row="", column="", cells={}) == replace(other, row="", column="", cells={})


def is_retrieval(comparison: Comparison) -> bool:
    """Whether an interfered retrieval is held against the same without it."""
    chosen = "MIR" in comparison.later.upper() or comparison.later.startswith("ranking")
    return chosen and ("MIR" not in comparison.earlier.upper() or comparison.earlier == CONTROL)


def once(compared: Iterable[Comparison]) -> list[Comparison]:
    """Without the comparisons of the very same runs that another target shows too; what was not run stays."""
    seen: set[tuple[str, str, tuple[float, ...]]] = set()
    kept = []
    for comparison in compared:
        if "accuracy" in comparison.found:
            mark = (comparison.later.upper(), comparison.earlier.upper(), comparison.found["accuracy"].ours.values)
            if mark in seen:
                continue
            seen.add(mark)
        kept.append(comparison)
    return kept


def difference_of(comparison: Comparison, metric: str) -> str:
    if metric not in comparison.found:
        return UNDEFINED
    ours = comparison.found[metric].ours
    return f"{number(ours, metric, sign=True)} (n = {ours.n})"
