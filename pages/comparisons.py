"""Pairs of places of a target held against each other, run or not, and on which side of zero they differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from rehearse.lab.paper.conditions import UNKNOWN
from rehearse.lab.paper.outcome import Difference, Outcome, cpu_seconds
from rehearse.lab.report.reproduction import count, number
from rehearse.lab.report.tables import UNDEFINED
from rehearse.lab.statistics import Summary

Verdict = Literal["ahead", "behind", "open", "not run"]


@dataclass(frozen=True)
class Comparison:
    """Two places of a target that are compared, and what came of it by metric; nothing where it was not run."""

    target: str
    later: str
    earlier: str
    where: str
    stream: str
    found: Mapping[str, Difference]
    retrieval: bool
    """Whether the two differ in how memories are chosen, not in their settings (`Target.retrievals`)."""
    runs: tuple[str, str]
    """What is run for the two, to tell the same comparison in another target."""

    @property
    def place(self) -> tuple[str, str, str, str]:
        """What tells it from all other comparisons of all targets."""
        return self.target, self.later, self.earlier, self.where

    def verdict(self, metric: str = "accuracy") -> Verdict:
        """On which side it lies; to forget less is to be ahead."""
        if metric not in self.found:
            return "not run"
        return side(self.found[metric].ours, -1 if metric == "forgetting" else 1)


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
    found = {(d.later, d.earlier, d.column, d.metric): d for d in outcome.differences}
    for later, earlier, where, places in target.compared():
        both = [entries[place] for place in places]
        if both[0].runs == both[1].runs:  # the same numbers of the same runs: nothing to compare
            continue
        known = {m: found[later, earlier, where, m] for m in target.metrics if (later, earlier, where, m) in found}
        runs = (both[0].runs, both[1].runs)
        retrieval = (later, earlier) in target.retrievals
        yield Comparison(target.name, later, earlier, where, both[0].stream, known, retrieval, runs)


def once(compared: Iterable[Comparison]) -> list[Comparison]:
    """Without the comparisons of the very same runs that another target shows too."""
    kept: dict[tuple[str, str], Comparison] = {}
    for comparison in compared:
        kept.setdefault(comparison.runs, comparison)
    return list(kept.values())


def difference_of(comparison: Comparison, metric: str) -> str:
    if metric not in comparison.found:
        return UNDEFINED
    found = comparison.found[metric]
    return f"{number(found.ours, metric, sign=True)} (n = {count(found)})"


def common_costs(outcome: Outcome, column: str) -> dict[str, float]:
    """row -> CPU seconds a run, of the runs under a known condition that all rows share; nothing where there is none.

    Of several such conditions the one with the most runs counts.
    """
    rows = {row: list(runs.values()) for (row, where), runs in outcome.runs.items() if where == column and runs}
    shared = set.intersection(*({result["condition"] for result in runs} for runs in rows.values())) if rows else set()
    found = [
        {row: [cpu_seconds(result) for result in runs if result["condition"] == one] for row, runs in rows.items()}
        for one in sorted(shared)
        if UNKNOWN not in one
    ]
    costs = max(found, key=lambda costs: sum(map(len, costs.values())), default={})
    return {row: fmean(seconds) for row, seconds in costs.items()}
