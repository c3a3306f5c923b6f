"""A target held against results: ours, how many runs, what was published, and the verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from ..spec import Spec
from ..statistics import Summary, Verdict, paired_difference, summary, verdict
from .published import Cell
from .target import Entry, Target

Result = Mapping[str, Any]
Judgement = Verdict | Literal["not run", "not available", "stale"]


class Results:
    """Results by what they measure: the spec without seed, precision and versions."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._groups: dict[str, dict[tuple[int, str, int, int], Result]] = {}
        for result in results:
            spec = Spec.from_dict(result["spec"])
            place = (spec.seed, spec.precision, spec.method_version, spec.stream_version)
            self._groups.setdefault(_group(spec), {})[place] = result

    def current(self, spec: Spec, seeds: int | None = None) -> dict[int, Result]:
        """seed -> the result of a spec under the versions of today, for seeds below ``seeds``.

        Where a seed was run in several precisions, float32 counts.
        """
        found: dict[int, Result] = {}
        for (seed, precision, method, stream), result in sorted(
            self._groups.get(_group(spec), {}).items(), key=lambda item: (item[0][0], item[0][1] != "float32")
        ):
            wanted = spec.precision in ("auto", precision) and (seeds is None or seed < seeds)
            if wanted and (method, stream) == (spec.method_version, spec.stream_version):
                found.setdefault(seed, result)
        return found

    def of(self, entry: Entry, seeds: int | None = None) -> dict[int, Result]:
        """seed -> the result of an entry, with the numbers of its treatment in the place of the run's own."""
        found = self.current(entry.spec(), seeds)
        if entry.treatment is None:
            return found
        told = {seed: result for seed, result in found.items() if entry.treatment in result.get("treatments", {})}
        treated = {seed: {**result, **result["treatments"][entry.treatment]} for seed, result in told.items()}
        return dict(sorted((self.current(entry.alone(), seeds) | treated).items()))

    def stale(self, spec: Spec) -> int:
        """How many results of a spec are of earlier versions of its method or stream."""
        versions = (spec.method_version, spec.stream_version)
        return sum(place[2:] != versions for place in self._groups.get(_group(spec), {}))


def _group(spec: Spec) -> str:
    return replace(spec, seed=0, precision="auto", method_version=0, stream_version=0).canonical


@dataclass(frozen=True)
class Line:
    """One number of a target. ``stale`` counts results of earlier versions, which are not in ``ours``."""

    entry: Entry
    metric: str
    ours: Summary | None
    published: Cell | None
    judgement: Judgement
    stale: int = 0
    cpu_seconds: float | None = None
    precisions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Difference:
    """One row of a target minus another, seed by seed, in one column."""

    later: str
    earlier: str
    column: str
    metric: str
    ours: Summary


@dataclass(frozen=True)
class Outcome:
    """A target with what was measured for it so far."""

    target: Target
    seeds: int
    lines: tuple[Line, ...]
    differences: tuple[Difference, ...]
    runs: Mapping[tuple[str, str], Mapping[int, Result]]
    """(row, column) -> seed -> result."""


def outcome(target: Target, results: Results, seeds: int | None = None) -> Outcome:
    """What the results say about a target; only seeds 0, 1, … below ``seeds`` (or the published number) count.

    What the paper marks as not applicable (forgetting of an iid stream) is no line.
    """
    seeds = seeds or target.seeds
    runs = {
        (entry.row, entry.column): results.of(entry, seeds) if entry.missing is None else {} for entry in target.entries
    }
    lines = tuple(
        _line(entry, metric, runs[entry.row, entry.column], results)
        for entry in target.entries
        for metric in target.metrics
        if not (metric in entry.cells and entry.cells[metric].printed == "N/A")
    )
    return Outcome(target, seeds, lines, tuple(_differences(target, runs)), runs)


def _line(entry: Entry, metric: str, runs: Mapping[int, Result], results: Results) -> Line:
    cell = entry.cells.get(metric)
    if entry.missing is not None:
        return Line(entry, metric, None, cell, "not available")
    stale = results.stale(entry.spec())
    if not runs:
        return Line(entry, metric, None, cell, "stale" if stale else "not run", stale)
    values = values_of(runs, metric)
    ours = summary(values.values()) if values else None
    judgement: Judgement = "no number"
    if ours is not None:
        judgement = verdict(ours, cell.number if cell is not None else None)
    costs = [cpu_seconds(result) for result in runs.values()]
    precisions = tuple(sorted({result["spec"]["precision"] for result in runs.values()}))
    return Line(entry, metric, ours, cell, judgement, stale, fmean(costs), precisions)


def _differences(target: Target, runs: Mapping[tuple[str, str], Mapping[int, Result]]) -> Iterable[Difference]:
    """``column`` is where both stand: a column, or for a pair of columns the row."""
    columns = dict.fromkeys(entry.column for entry in target.entries)
    rows = dict.fromkeys(entry.row for entry in target.entries)
    places = [(pair, column, [(row, column) for row in pair]) for pair in target.pairs for column in columns]
    places += [(pair, row, [(row, column) for column in pair]) for pair in target.column_pairs for row in rows]
    for (later, earlier), where, pair in places:
        for metric in target.metrics:
            a, b = (values_of(runs.get(place, {}), metric) for place in pair)
            if a.keys() & b.keys():
                yield Difference(later, earlier, where, metric, paired_difference(a, b))


def values_of(runs: Mapping[int, Result], metric: str) -> dict[int, float]:
    """seed -> value, without the runs where the metric is undefined."""
    values = {seed: _value(result, metric) for seed, result in runs.items()}
    return {seed: value for seed, value in values.items() if value is not None}


# What a search in latent space measured of itself, in the report of a run.
SEARCHED = {
    f"{network} {what} {when}": (network, f"{what}_{when}")
    for network in ("classifier", "generator")
    for what in ("interference", "entropy")
    for when in ("before", "after")
}


def _value(result: Result, metric: str) -> float | None:
    if metric not in SEARCHED:
        value: float | None = result["metrics"].get(metric)
        return value
    network, name = SEARCHED[metric]
    measured: float | None = result["report"].get("search", {}).get(network, {}).get(name)
    return measured


def cpu_seconds(result: Result) -> float:
    """What a run cost, without the evaluation of treatments that are not its own."""
    return float(result["cost"]["cpu_seconds"] - result["cost"].get("treatments_cpu_seconds", 0.0))


def to_run(target: Target, results: Results, seeds: int | None = None) -> list[Spec]:
    """The specs of a target, each once, seed by seed; a treatment by itself where its training does not tell it."""
    specs = []
    for seed in range(seeds or target.seeds):
        for entry in target.available():
            trained = results.current(entry.spec(), seed + 1).get(seed)
            untold = trained is not None and entry.treatment is not None and "treatments" not in trained
            specs.append(entry.alone(seed) if untold else entry.spec(seed))
    return list({spec.key: spec for spec in specs}.values())
