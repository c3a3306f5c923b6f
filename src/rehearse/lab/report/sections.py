"""Runs in the order of a report: a section for each stream with its settings, a row for each way of learning it."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..campaign.store import is_stale
from ..methods import METHODS, precision_of, resolve
from ..spec import Spec, named_specs
from .compare import compare, flat_spec, low_ceilings, settings_that_differ
from .runs import FinishedRun
from .sentences import fallback_sentences

# What makes two runs answers to the same question; the rest of a spec tells methods apart.
PROBLEM = (
    "stream", "tasks", "samples_per_task", "batch_size", "class_order", "split_seed", "stream_version",
)  # fmt: skip
STYLES = 8  # colours, and as many marks: a row has one of each
NOTES = 3  # settings shown in the name of a row


@dataclass(frozen=True)
class Row:
    """A method with its settings, over seeds."""

    label: str
    style: int
    runs: Sequence[FinishedRun]

    @property
    def spec(self) -> Spec:
        return self.runs[0].spec

    @property
    def stale(self) -> bool:
        """Whether the version of the method or stream has moved on since these runs, or they are gone."""
        return is_stale(self.spec)

    @cached_property
    def matrices(self) -> NDArray[np.float64]:
        """Seeds × tasks × tasks: accuracy on a task after learning a task, nan where it was not measured."""
        return np.array([run.result["matrices"]["test"] for run in self.runs], dtype=np.float64)

    @cached_property
    def over_time(self) -> dict[int, list[float]]:
        """Step -> accuracy on the tasks seen so far, of each run; where all were evaluated within tasks."""
        found: dict[int, list[float]] = {}
        for within in (run.result.get("within", []) for run in self.runs):
            for one in within:
                found.setdefault(one["step"], []).append(float(np.mean(one["test"][: one["task"] + 1])))
        return {step: values for step, values in sorted(found.items()) if len(values) == len(self.runs)}


@dataclass(frozen=True)
class Section:
    """Rows that can be compared: the same stream under the same settings, with the same memory."""

    problem: Mapping[str, Any]
    capacity: int | None
    rows: Sequence[Row]

    @cached_property
    def comparison(self) -> dict[str, Any]:
        return compare({row.label: [run.result for run in row.runs] for row in self.rows})

    @cached_property
    def aside(self) -> frozenset[str]:
        """Rows that charts leave out until they are asked for: variants, where there are more rows than colours."""
        variants = frozenset(row.label for row in self.rows if not _is_plain(row.spec))
        crowded = len(self.rows) > STYLES and len(self.rows) - len(variants) > 1
        return variants if crowded else frozenset()

    @property
    def warnings(self) -> list[str]:
        results = [run.result for row in self.rows for run in row.runs]
        differ = settings_that_differ({row.label: row.spec for row in self.rows})
        return [*([differ] if differ else []), *low_ceilings(self.comparison), *fallback_sentences(results)]

    @property
    def runs(self) -> int:
        return sum(len(row.runs) for row in self.rows)


def _is_plain(spec: Spec) -> bool:
    """Whether a method is as its stream sets it, whatever its memory and precision."""
    if is_stale(spec):
        return False
    given = {name: getattr(spec, name) for name in ("capacity", *PROBLEM) if name not in ("stream", "stream_version")}
    usual = resolve(spec.method, spec.stream, {name: value for name, value in given.items() if value is not None})
    return usual.group == spec.group


def sections(runs: Iterable[FinishedRun]) -> list[Section]:
    """The runs by stream, settings and memory; what needs no memory stands beside every memory of its problem."""
    problems: dict[str, list[FinishedRun]] = defaultdict(list)
    for run in runs:
        problems[json.dumps(_problem(run.spec))].append(run)
    made = [section for text in sorted(problems) for section in _by_capacity(json.loads(text), problems[text])]
    labels = list(dict.fromkeys(row.label for section in made for row in section.rows))
    return [_styled(section, labels) for section in made]


def _problem(spec: Spec) -> dict[str, Any]:
    values = spec.to_dict()
    return {name: values[name] for name in PROBLEM}


def _by_capacity(problem: dict[str, Any], runs: list[FinishedRun]) -> list[Section]:
    given = {run.spec.capacity for run in runs if run.spec.capacity is not None}
    capacities: list[int | None] = [*sorted(given)] or [None]
    return [
        Section(problem, capacity, _rows([run for run in runs if run.spec.capacity in (capacity, None)]))
        for capacity in capacities
    ]


def _rows(runs: Iterable[FinishedRun]) -> list[Row]:
    # Tasks' counts are part of the group too: they follow from the spec, unless data of one's own changed.
    groups: dict[tuple[str, int], list[FinishedRun]] = defaultdict(list)
    for run in runs:
        groups[run.spec.group, len(run.result["matrices"]["test"])].append(run)
    parts = [part for group in groups.values() for part in _without_repeated_seeds(group)]
    parts.sort(key=lambda part: (_rank(part[0].spec), part[0].spec.canonical))
    return [Row(label, 0, part) for label, part in zip(_labels(parts), parts, strict=True)]


def _common(runs: Sequence[FinishedRun]) -> Spec:
    """What the runs of a row share, and whether they do not share their precision."""
    precisions = {precision_of(run.spec) for run in runs}
    return dataclasses.replace(runs[0].spec, precision=precisions.pop() if len(precisions) == 1 else "mixed")


def _without_repeated_seeds(group: list[FinishedRun]) -> list[list[FinishedRun]]:
    """The group in order of seeds; where one seed was run at two precisions, a row for each precision."""
    # one may be there under two names, or with and without evaluation within tasks
    once = {(run.spec.seed, precision_of(run.spec)): run for run in sorted(group, key=lambda run: run.spec.every or 0)}
    group = sorted(once.values(), key=lambda run: run.spec.seed)
    if len({run.spec.seed for run in group}) == len(group):
        return [group]
    precisions = dict.fromkeys(precision_of(run.spec) for run in group)
    return [[run for run in group if precision_of(run.spec) == precision] for precision in precisions]


def _rank(spec: Spec) -> int:
    """Methods in the order of the command line, others after them."""
    return list(METHODS).index(spec.method) if spec.method in METHODS else len(METHODS)


def _labels(rows: Sequence[Sequence[FinishedRun]]) -> list[str]:
    """The name of the method, or of the spec where it has one, followed by what tells its rows apart."""
    specs = [_common(runs) for runs in rows]
    specs = [dataclasses.replace(spec, seed=0) for spec in specs]
    flat, names = [flat_spec(spec) for spec in specs], [_names().get(spec.group, spec.method) for spec in specs]
    labels = []
    for values, name in zip(flat, names, strict=True):
        rivals = [other for other, its in zip(flat, names, strict=True) if its == name]
        fields = [field for field in values if any(other.get(field) != values[field] for other in rivals)]
        notes = [f"{field.replace('_', ' ')} {word(values[field])}" for field in fields]
        if len(notes) > NOTES:
            notes = [*notes[:NOTES], "…"]  # the rest stands with the runs
        labels.append(name + (f" ({', '.join(notes)})" if notes else ""))
    repeated = {label for label, count in Counter(labels).items() if count > 1}
    keys = [runs[0].spec.key for runs in rows]
    return [f"{label} [{key}]" if label in repeated else label for label, key in zip(labels, keys, strict=True)]


@cache
def _names() -> dict[str, str]:
    """What the runs of named specs share, and the name."""
    known = named_specs().items()
    return {resolve(values["method"], values["stream"], values).group: name for name, values in known}


def word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _styled(section: Section, labels: list[str]) -> Section:
    """A row keeps its colour through the page, as long as there are colours for all; else within its section."""
    known = labels if len(labels) <= STYLES else [row.label for row in section.rows]
    rows = [dataclasses.replace(row, style=known.index(row.label) % STYLES**2) for row in section.rows]
    return dataclasses.replace(section, rows=rows)
