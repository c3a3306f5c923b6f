"""A target held against results: ours, how many runs, what was published, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from ...precision import PRECISIONS
from ..methods import precision_of
from ..spec import Spec
from ..statistics import MARGIN, Summary, Verdict, paired_difference, summary, verdict
from .conditions import condition, rounding
from .published import PER_CENT, Cell
from .reference import reference
from .target import Entry, Target

Result = Mapping[str, Any]
Judgement = Literal["differs", "agrees", "inconclusive", "no number", "not run", "stale"]


class Results:
    """Results by what they measure: the spec without seed, precision and versions."""

    def __init__(self, results: Iterable[Result]) -> None:
        self._groups: dict[str, dict[tuple[int, str, int, int], Result]] = {}
        for result in results:
            spec = Spec.from_dict(result["spec"])
            place = (spec.seed, precision_of(spec), spec.method_version, spec.stream_version)
            known = {**result, "condition": condition(result)}
            self._groups.setdefault(_group(spec), {})[place] = known
            if spec.every is not None:  # it learned the same as the run without evaluation within tasks
                self._groups.setdefault(_group(replace(spec, every=None)), {}).setdefault(place, known)

    def current(
        self, spec: Spec, seeds: int | None = None, treatment: str | None = None, only: str | None = None
    ) -> dict[int, Result]:
        """seed -> the result of a spec under the versions of today, for seeds below ``seeds``.

        Where a seed was run in several precisions, one that tells the ``treatment`` counts, and of those float32;
        or those of one precision ``only``.
        """

        def rank(place: tuple[int, str, int, int]) -> tuple[bool, bool]:
            return treatment is not None and not _tells(group[place], treatment), place[1] != "float32"

        group = self._groups.get(_group(spec), {})
        found: dict[int, Result] = {}
        for seed, precision, *versions in sorted(group, key=rank):
            wanted = spec.precision in ("auto", precision) and only in (None, precision)
            wanted = wanted and (seeds is None or seed < seeds)
            if wanted and versions == [spec.method_version, spec.stream_version]:
                found.setdefault(seed, group[seed, precision, versions[0], versions[1]])
        return dict(sorted(found.items()))

    def of(self, entry: Entry, seeds: int | None = None, only: str | None = None) -> dict[int, Result]:
        """seed -> the result of an entry, with the numbers of its treatment in the place of the run's own."""
        found = self.current(entry.spec(), seeds, entry.treatment, only)
        if entry.treatment is None:
            return found
        treated = {
            seed: {**result, **result["treatments"][entry.treatment]}
            for seed, result in found.items()
            if _tells(result, entry.treatment)
        }
        return dict(sorted((self.current(entry.alone(), seeds, only=only) | treated).items()))

    def pairs(
        self, one: Entry, other: Entry, seeds: int | None = None, only: str | None = None
    ) -> dict[int, tuple[Result, Result]]:
        """seed -> the results of two entries, of one precision where both have one, or of ``only`` one."""
        found: dict[int, tuple[Result, Result]] = {}
        ranked = ("float32", *(name for name in PRECISIONS if name != "float32"), None)
        for precision in ranked if only is None else (only,):
            a, b = self.of(one, seeds, precision), self.of(other, seeds, precision)
            found = {seed: (a[seed], b[seed]) for seed in a.keys() & b.keys()} | found
        return dict(sorted(found.items()))

    def usual_precision(self, target: Target) -> str | None:
        """The one precision that the numbers of a target are of, where they are: that of most of its runs."""
        every = ((entry, precision) for entry in target.entries for precision in PRECISIONS)
        runs = Counter(precision for entry, precision in every for _ in self.of(entry, only=precision))
        return runs.most_common(1)[0][0] if runs and target.one_precision else None

    def stale(self, spec: Spec) -> set[int]:
        """The seeds of a spec that have results of earlier versions of its method or stream, and none of today's."""
        return {place[0] for place in self._groups.get(_group(spec), {})} - self.current(spec).keys()


def _tells(result: Result, treatment: str) -> bool:
    return treatment in result.get("treatments", {})


def _group(spec: Spec) -> str:
    return replace(spec, seed=0, precision="auto", method_version=0, stream_version=0).canonical


@dataclass(frozen=True)
class Line:
    """One number of a target.

    ``stale`` counts seeds with results of earlier versions alone, which are not in ``ours``; ``undefined`` runs that
    have no such number, though others do.
    """

    entry: Entry
    metric: str
    ours: Summary | None
    published: Cell | None
    judgement: Judgement
    stale: int = 0
    cpu_seconds: float | None = None
    precisions: tuple[str, ...] = ()
    undefined: int = 0
    conditions: tuple[str, ...] = ()
    """On which kinds of processors the runs were made, and what they evaluated: CPU seconds compare under the same."""
    verdict: Verdict | None = None
    """Ours − published, where both have a number; its word is the judgement."""
    reference: Summary | None = None
    """What the reference implementation gave at these settings."""


@dataclass(frozen=True)
class Difference:
    """One row of a target minus another, seed by seed, in one column."""

    later: str
    earlier: str
    column: str
    metric: str
    ours: Summary
    crossed: bool = False
    """Whether the two runs of some seed were made on different kinds of processors, where it is not the same seed."""


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
    """What the results say about a target; with ``seeds`` those below it alone, else every seed there is.

    What the paper marks as not applicable (forgetting of an iid stream) is no line.
    """
    only = results.usual_precision(target)
    runs = {(entry.row, entry.column): results.of(entry, seeds, only) for entry in target.entries}
    lines = tuple(
        _line(entry, metric, runs[entry.row, entry.column], results, seeds)
        for entry in target.entries
        for metric in target.metrics
        if not (metric in entry.cells and entry.cells[metric].printed == "N/A")
    )
    return Outcome(target, seeds or target.seeds, lines, tuple(_differences(target, results, seeds, only)), runs)


def _line(entry: Entry, metric: str, runs: Mapping[int, Result], results: Results, seeds: int | None) -> Line:
    cell = entry.cells.get(metric)
    theirs = reference(entry.spec(), metric) if entry.treatment is None else None
    stale = len([seed for seed in results.stale(entry.spec()) - runs.keys() if seeds is None or seed < seeds])
    if not runs:
        return Line(entry, metric, None, cell, "stale" if stale else "not run", stale, reference=theirs)
    values = values_of(runs, metric)
    ours = summary(values.values()) if values else None
    compared = None
    if ours is not None and cell is not None:
        compared = verdict(ours, cell.number, MARGIN if cell.metric in PER_CENT else 100 * MARGIN)  # 2 points, 2 nats
    judgement: Judgement = "no number" if compared is None else compared.word
    costs = [cpu_seconds(result) for result in runs.values()]
    precisions = tuple(sorted({precision_of(Spec.from_dict(result["spec"])) for result in runs.values()}))
    undefined = len(runs) - len(values) if values else 0
    conditions = tuple(sorted({result["condition"] for result in runs.values()}))
    cost = fmean(costs)
    return Line(entry, metric, ours, cell, judgement, stale, cost, precisions, undefined, conditions, compared, theirs)


def _differences(target: Target, results: Results, seeds: int | None, only: str | None) -> Iterable[Difference]:
    """``column`` is where both stand: a column, or for a pair of columns the row."""
    entries = {(entry.row, entry.column): entry for entry in target.entries}
    for later, earlier, where, places in target.compared():
        pairs = results.pairs(entries[places[0]], entries[places[1]], seeds, only)
        for metric in target.metrics:
            a, b = (values_of({seed: pair[side] for seed, pair in pairs.items()}, metric) for side in (0, 1))
            if a.keys() & b.keys():
                crossed = any(rounding(one) != rounding(two) for one, two in pairs.values())
                yield Difference(later, earlier, where, metric, paired_difference(a, b), crossed)


def values_of(runs: Mapping[int, Result], metric: str) -> dict[int, float]:
    """seed -> value, without the runs where the metric is undefined."""
    values = {seed: _value(result, metric) for seed, result in runs.items()}
    return {seed: value for seed, value in values.items() if value is not None}


# What a search in latent space measured of itself, by where that stands in the report of a run.
MOMENTS = ("before", "after")
SEARCHED: Mapping[str, tuple[str, ...]] = {
    f"{network} {what} {when}": ("search", network, f"{what}_{when}")
    for network in ("classifier", "generator")
    for what in ("interference", "entropy")
    for when in MOMENTS
} | {
    f"search {what} {when}": ("search", f"{what}_{when}") for what in ("objective", "interference") for when in MOMENTS
}


def _value(result: Result, metric: str) -> float | None:
    if metric not in SEARCHED:
        value: float | None = result["metrics"].get(metric)
        return value
    found: Any = result["report"]
    for name in SEARCHED[metric]:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found if isinstance(found, int | float) else None


def cpu_seconds(result: Result) -> float:
    """What a run cost, without the evaluation of treatments that are not its own, and without that within tasks."""
    extra = ("treatments_cpu_seconds", "within_cpu_seconds")
    return float(result["cost"]["cpu_seconds"] - sum(result["cost"].get(name, 0.0) for name in extra))


def to_run(target: Target, results: Results, seeds: int | None = None, first_seed: int = 0) -> list[Spec]:
    """The specs of a target, each once, seed by seed; a treatment by itself where its training does not tell it.

    What has a result, in whatever precision, is that result's own spec: it counts, and is not run again.
    """
    specs = [
        _counted(results, entry, seed) or _spec_to_run(results, entry, seed)
        for seed, entry in target.places(seeds, first_seed)
    ]
    return list({spec.key: spec for spec in specs}.values())


def _counted(results: Results, entry: Entry, seed: int) -> Spec | None:
    counted = results.of(entry, seed + 1).get(seed)
    return None if counted is None else Spec.from_dict(counted["spec"])


def _spec_to_run(results: Results, entry: Entry, seed: int) -> Spec:
    untold = entry.treatment is not None and seed in results.current(entry.spec(), seed + 1)
    return entry.alone(seed) if untold else entry.spec(seed)
