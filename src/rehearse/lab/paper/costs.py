"""What a run will cost before it is run: by what its like has cost, or by a rough estimate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from math import ceil
from statistics import fmean
from typing import Any

from ..methods import METHODS, find_method, resolve
from ..spec import Spec
from ..streams import STREAMS

# CPU seconds for one incoming row and update of plain fine-tuning, and for one row in an evaluation, on one core of a
# server with AVX2; orders of magnitude, for what has never been run.
SECONDS_A_ROW = {"mlp": 2e-4, "gated": 4e-4, "resnet18": 8e-3}
SECONDS_A_TESTED_ROW = {"mlp": 1.7e-5, "gated": 4e-5, "resnet18": 1.7e-3}
# What a method costs as a multiple of that.
FACTORS = {
    "er": 2.0, "er-ace": 2.0, "der": 2.0, "er-mir": 4.0, "er-mir-head": 3.0, "er-ace-mir": 4.0, "der-mir": 4.0,
    "er-plus": 4.0, "er-plus-loss": 6.0, "er-plus-mir": 8.0, "gem": 20.0, "agem": 5.0, "icarl": 3.0, "gen": 1.6,
    "gen-mir": 4.0, "ae": 15.0, "ae-mir": 18.0,
}  # fmt: skip
ROWS_A_TASK = {"split-cifar10": 9750, "split-miniimagenet": 2280, "split-mnist-5k": 700}
# Rows of all test and validation sets, of which those of the tasks so far are passed after every task; of Permuted
# MNIST, for each of its tasks.
TESTED_ROWS = {
    "split-mnist": 13_000, "permuted-mnist": 13_000, "split-cifar10": 11_250, "split-miniimagenet": 14_400,
    "split-mnist-5k": 1_500,
}  # fmt: skip
RESULT_BYTES, METRICS_BYTES_A_STEP = 4_000, 120


@dataclass(frozen=True)
class Estimate:
    """CPU seconds, bytes on disk, and whether the seconds come from runs of the very same setting."""

    cpu_seconds: float
    disk_bytes: int
    measured: bool


class Costs:
    """Estimates from results."""

    def __init__(self, results: Iterable[Mapping[str, Any]]) -> None:
        self._same: dict[tuple[str, int | None], list[float]] = {}
        self._alike: dict[tuple[str, str, str], list[float]] = {}
        for result in results:
            spec, seconds = Spec.from_dict(result["spec"]), result["cost"]["cpu_seconds"]
            if spec.method not in METHODS or spec.stream not in STREAMS:
                continue  # of an earlier version of the package
            self._same.setdefault((spec.group, spec.every), []).append(seconds)
            self._alike.setdefault(_kind(spec), []).append(seconds / work(spec))

    def estimate(self, spec: Spec) -> Estimate:
        disk = RESULT_BYTES + METRICS_BYTES_A_STEP * rows(spec) // spec.batch_size
        if (spec.group, spec.every) in self._same:
            return Estimate(fmean(self._same[spec.group, spec.every]), disk, True)
        if _kind(spec) in self._alike:
            return Estimate(work(spec) * fmean(self._alike[_kind(spec)]), disk, False)
        a_row = SECONDS_A_ROW.get(spec.network, SECONDS_A_ROW["resnet18"]) * FACTORS.get(spec.method, 1.0)
        a_test = SECONDS_A_TESTED_ROW.get(spec.network, SECONDS_A_TESTED_ROW["resnet18"])
        larger = (84 / 32) ** 2 if spec.stream == "split-miniimagenet" else 1.0
        return Estimate(larger * (work(spec) * a_row + tested(spec) * a_test), disk, False)


def rows(spec: Spec) -> int:
    """Rows of a run that it learns."""
    known = STREAMS[spec.stream]
    a_task = spec.samples_per_task or known.samples_per_task or ROWS_A_TASK.get(spec.stream, 1000)
    epochs = find_method(spec.method).iid_epochs or 1
    return ceil(a_task * (spec.tasks or known.n_tasks) * epochs / (spec.step_cost or 1))


def tested(spec: Spec) -> int:
    """Rows that are passed to be tested: those of the tasks so far after every task, a shuffled stream being one."""
    tasks = spec.tasks or STREAMS[spec.stream].n_tasks
    rows = TESTED_ROWS.get(spec.stream, 10_000) * (tasks if spec.stream == "permuted-mnist" else 1)
    return rows if find_method(spec.method).iid_epochs else rows * (tasks + 1) // 2


def work(spec: Spec) -> float:
    """What the cost is proportional to: rows times updates, and what is passed for a row where that is not usual."""
    return rows(spec) * (spec.updates or 1) * _passes(spec) / _usual_passes(spec.method, spec.stream)


@cache
def _usual_passes(method: str, stream: str) -> float:
    return _passes(resolve(method, stream))


def _passes(spec: Spec) -> float:
    """Forward passes for a batch, a backward pass counting as two; candidates pass once, or twice to be scored.

    GEM passes all that is stored of past tasks: half of the memory on average.
    """
    if spec.method == "gem":
        return 3 * (spec.batch_size + (spec.capacity or 0) / 2)
    candidates = spec.capacity if spec.candidates == "all" else spec.candidates
    scoring = (1 if spec.criterion is None else 2) * int(candidates or 0)
    return 3 * (spec.batch_size + (spec.budget or 0)) + scoring


def _kind(spec: Spec) -> tuple[str, str, str]:
    return spec.stream, spec.method, spec.network
