"""The accuracy matrices of a run: their metrics, and how they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import metrics
from ..errors import CheckpointError

Matrices = dict[str, metrics.Array]
"""The name of the evaluation sets -> accuracy on each task (column) after learning each task (row)."""


def accuracy_metrics(matrices: Matrices, sizes: Sequence[int]) -> dict[str, float]:
    """Return the metrics of accuracy matrices, given by the name of their evaluation sets."""
    test = matrices["test"]
    numbers = {
        "accuracy": metrics.average_accuracy(test),
        "pooled_accuracy": metrics.pooled_accuracy(test, sizes),
        "forgetting": metrics.forgetting(test),
        "backward_transfer": metrics.backward_transfer(test),
        "learning_accuracy": metrics.learning_accuracy(test),
        "anytime_accuracy": metrics.anytime_accuracy(test),
    }
    if "validation" in matrices:
        numbers["validation_accuracy"] = metrics.average_accuracy(matrices["validation"])
    return numbers


def as_lists(matrices: Matrices) -> dict[str, Any]:
    """Return accuracy matrices as plain lists."""
    return {name: matrix.tolist() for name, matrix in matrices.items()}


def as_arrays(lists: Mapping[str, Any], like: Matrices) -> Matrices:
    """Return plain lists as accuracy matrices, or refuse those that have another shape than ``like``."""
    arrays = {name: np.array(lists[name]) for name in like}
    for name, matrix in arrays.items():
        known = matrix.shape == like[name].shape and matrix.dtype == np.float64
        if not known or not (np.isnan(matrix) | (matrix >= 0) & (matrix <= 1)).all():
            raise CheckpointError(f"its accuracies on the {name} sets are not those of this run")
    return arrays
