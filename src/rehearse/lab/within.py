"""Evaluations within tasks: what they measure, and what a run may leave of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from .. import metrics
from ..checks import is_number, is_whole
from ..errors import DataError
from .spec import Spec

TIMED: Final = {
    "anytime_average_accuracy": metrics.anytime_accuracy,
    "worst_case_accuracy": metrics.worst_case_accuracy,
    "stability_gap": metrics.stability_gap,
}
"""What evaluations within tasks measure."""


def over_time(within: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of evaluations within tasks; nothing where there are none."""
    tasks = [one["task"] for one in within]
    curve = np.array([one["test"] for one in within], dtype=np.float64)
    return {name: measure(curve, tasks) for name, measure in TIMED.items()} if within else {}


def check_within(within: Any, spec: Spec, tasks: int) -> None:
    """Refuse evaluations within tasks that a run of ``spec``, of so many tasks, does not leave in its progress."""
    if not isinstance(within, list) or (within and spec.every is None):
        raise DataError("its evaluations within tasks are no list, or its spec asks for none")
    if not all(_is_evaluation(one, tasks) for one in within):
        raise DataError("an evaluation within a task lacks its step, its task or an accuracy, or one is no fraction")
    if not all(one["step"] < then["step"] and one["task"] <= then["task"] for one, then in pairwise(within)):
        raise DataError("its evaluations within tasks are not in order")


def _is_evaluation(one: Any, tasks: int) -> bool:
    if not isinstance(one, dict) or one.keys() != {"step", "task", "test"}:
        return False
    step, task, accuracies = one["step"], one["task"], one["test"]
    if not is_whole(step) or step < 1 or not is_whole(task) or not 0 <= task < tasks:
        return False
    if not isinstance(accuracies, list) or len(accuracies) != tasks:
        return False
    known = [value for place, value in enumerate(accuracies) if place <= task or value is not None]
    return all(is_number(value) and 0 <= value <= 1 for value in known)
