"""Runs side by side: each method over its seeds, and methods paired on the seeds they share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from ..methods import precision_of
from ..paper.outcome import cpu_seconds, values_of
from ..spec import Spec
from ..statistics import Summary, paired_difference, summary
from ..within import TIMED

Result = Mapping[str, Any]
METRICS = ("accuracy", "forgetting")
NOT_SETTINGS = ("method", "stream", "seed", "precision", "method_version", "stream_version")


def by_seed(results: Sequence[Result], metric: str) -> dict[int, float]:
    """seed -> value, without the runs where the metric is undefined."""
    return values_of({int(result["spec"]["seed"]): result for result in results}, metric)


def compare(groups: Mapping[str, Sequence[Result]]) -> dict[str, Any]:
    """The comparison as plain values, as ``--json`` prints it: fractions, None for undefined."""
    results = [result for group in groups.values() for result in group]
    return {
        "stream": results[0]["spec"]["stream"] if results else None,
        "seeds": sorted({int(result["spec"]["seed"]) for result in results}),
        "methods": {name: _method(group) for name, group in groups.items()},
        "differences": [
            {"method": later, "minus": earlier}
            | {metric: difference(groups[later], groups[earlier], metric) for metric in METRICS}
            for earlier, later in combinations(groups, 2)
        ],
    }


def difference(later: Sequence[Result], earlier: Sequence[Result], metric: str) -> dict[str, Any] | None:
    """later − earlier on the seeds that both have, or None where they share none."""
    a, b = by_seed(later, metric), by_seed(earlier, metric)
    return as_plain(paired_difference(a, b)) if a.keys() & b.keys() else None


def _method(results: Sequence[Result]) -> dict[str, Any]:
    costs = [own_cost(result["cost"]) for result in results]

    def mean(name: str) -> float | None:
        values = [cost[name] for cost in costs if cost[name] is not None]
        return sum(values) / len(values) if values else None

    return {
        **{metric: _summary(by_seed(results, metric)) for metric in (*METRICS, *TIMED, "pooled_accuracy")},
        **{name: mean(name) for name in ("seconds", "cpu_seconds", "steps_per_second", "forward_passes")},
        "precisions": sorted({precision_of(Spec.from_dict(result["spec"])) for result in results}),
        "runs": [result["key"] for result in results],
        "reports": {result["key"]: result["report"] for result in results if result.get("report")},
    }


def own_cost(cost: Mapping[str, Any]) -> dict[str, Any]:
    """A run's cost without the evaluation of treatments that are not its own, which other methods do not have.

    The seconds of the clock are what they are: they hold whatever else the machine did meanwhile.
    """
    return {**cost, "cpu_seconds": cpu_seconds({"cost": cost})}


def _summary(values: Mapping[int, float]) -> dict[str, Any] | None:
    return as_plain(summary(list(values.values()))) if values else None


def as_plain(numbers: Summary) -> dict[str, Any]:
    return {
        "mean": numbers.mean,
        "interval": None if numbers.interval is None else list(numbers.interval),
        "median": numbers.median,
        "n": numbers.n,
        "values": list(numbers.values),
    }


def low_ceilings(comparison: Mapping[str, Any]) -> list[str]:
    """A sentence for each upper bound that lies below a method: it is no ceiling then."""
    methods = {name: values["accuracy"] for name, values in comparison["methods"].items() if values["accuracy"]}
    sentences = []
    for ceiling in ("iid-online", "iid-offline"):
        if ceiling in methods:
            above = [name for name in methods if methods[name]["mean"] > methods[ceiling]["mean"] and "iid" not in name]
            if above:
                sentences.append(
                    f"{ceiling} is no ceiling here: {', '.join(above)} {'lie' if len(above) > 1 else 'lies'} above it."
                )
    return sentences


def settings_that_differ(rows: Mapping[str, Spec]) -> str:
    """The settings in which rows of one comparison differ, with the rows; empty where they differ in none.

    A setting that only one of the rows has belongs to its method, and is left out.
    """
    flat = {row: flat_spec(spec) for row, spec in rows.items()}
    said = []
    for name in dict.fromkeys(name for values in flat.values() for name in values if name not in NOT_SETTINGS):
        found = {row: str(values[name]) for row, values in flat.items() if values.get(name) is not None}
        usual, *others = [value for value, _ in Counter(found.values()).most_common()] or [""]
        exceptions = [f"{value} ({', '.join(row for row in found if found[row] == value)})" for value in others]
        said += [f"{name.replace('_', ' ')} {usual}, but {', '.join(exceptions)}"] if exceptions else []
    return f"Settings that differ: {'; '.join(said)}." if said else ""


def flat_spec(spec: Spec) -> dict[str, Any]:
    """A spec with the method's own options beside its fields."""
    values = spec.to_dict()
    options: dict[str, Any] = values.pop("options")
    return values | options
