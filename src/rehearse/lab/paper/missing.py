"""What is still to be run, most valuable first: the queues of `rehearse reproduce missing` and `strong`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter

from ..spec import Spec
from .costs import Costs
from .outcome import Results, to_run
from .published import PUBLISHED
from .target import Target

MISSING = (*PUBLISHED, "figure4", "figure5", "figure6", "figure7")  # all that shows numbers


@dataclass(frozen=True)
class Stage:
    """A part of the queue: some targets (none named: all) and methods, and the number of seeds (None: as published)."""

    purpose: str
    targets: Sequence[str] = ()
    seeds: int | None = None
    methods: Sequence[str] = ()
    columns: Sequence[str] = ()

    def specs(self, targets: Sequence[Target], results: Results, seeds: int | None, first_seed: int) -> Iterator[Spec]:
        """Yield the runs of the stage, finished ones included: no more than ``seeds`` of each."""
        for target in targets:
            if target.name in (self.targets or [target.name]) and (not self.methods or target.has(self.methods)):
                part = target.only(self.methods) if self.methods else target
                kept = tuple(entry for entry in part.entries if entry.column in (self.columns or [entry.column]))
                most = min(self.seeds or target.seeds, seeds or target.seeds)
                yield from to_run(replace(part, entries=kept), results, most, first_seed)


def queue(
    stages: Sequence[Stage],
    targets: Sequence[Target],
    results: Results,
    costs: Costs,
    seeds: int | None,
    first: int = 0,
) -> list[tuple[str, Spec]]:
    """Return the runs of the targets in the order of their value, finished ones included, each with its purpose.

    Inside a stage they are ordered seed by seed, so that an early stop leaves pairs that can be compared, and of a
    seed the cheapest first.
    """
    ordered: dict[str, tuple[str, Spec]] = {}
    for stage in stages:
        specs = stage.specs(targets, results, seeds, first)
        for spec in sorted(specs, key=lambda spec: (spec.seed, costs.estimate(spec).cpu_seconds)):
            ordered.setdefault(spec.key, (stage.purpose, spec))
    return list(ordered.values())


def queue_lines(planned: Iterable[tuple[str, Spec]], targets: Iterable[Target], costs: Costs) -> Iterator[str]:
    """Yield a heading for each stage and a line for each run: CPU seconds, CPU hours up to its end, where it stands."""
    places: dict[str, str] = {}
    for target in targets:
        for entry in target.entries:
            places.setdefault(entry.spec().group, f"{target.name}: {entry.row}, {entry.column}")
    hours = 0.0
    for purpose, runs in groupby(planned, key=itemgetter(0)):
        yield f"{purpose}:"
        for _, spec in runs:
            cost = costs.estimate(spec)
            hours += cost.cpu_seconds / 3600
            rough, place = " " if cost.measured else "*", places.get(spec.group, f"{spec.method} on {spec.stream}")
            yield f"{cost.cpu_seconds:9,.0f} s{rough} {hours:8,.1f} h  {place}, seed {spec.seed}"
