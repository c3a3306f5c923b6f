"""The accuracy matrices of a run, by the name of their evaluation set: their metrics, and how checkpoints hold them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import metrics
from ..errors import CheckpointError


def numbers(matrices: Mapping[str, metrics.Array], sizes: Sequence[int]) -> dict[str, float]:
    """Return the metrics of accuracy matrices, given by the name of their evaluation sets."""
    test = matrices["test"]
    named = {
        "accuracy": metrics.average_accuracy(test),
        "pooled_accuracy": metrics.pooled_accuracy(test, sizes),
        "forgetting": metrics.forgetting(test),
        "backward_transfer": metrics.backward_transfer(test),
        "learning_accuracy": metrics.learning_accuracy(test),
        "anytime_accuracy": metrics.anytime_accuracy(test),
    }
    if "validation" in matrices:
        named["validation_accuracy"] = metrics.average_accuracy(matrices["validation"])
    return named


def lists(matrices: Mapping[str, metrics.Array]) -> dict[str, Any]:
    """Return the matrices as a checkpoint holds them."""
    return {name: matrix.tolist() for name, matrix in matrices.items()}


def arrays(lists: Mapping[str, Any], like: Mapping[str, metrics.Array]) -> dict[str, metrics.Array]:
    """Return what `lists` returned as matrices of these shapes, or refuse it."""
    found = {name: np.array(lists[name]) for name in like}
    for name, matrix in found.items():
        known = matrix.shape == like[name].shape and matrix.dtype == np.float64
        if not known or not (np.isnan(matrix) | (matrix >= 0) & (matrix <= 1)).all():
            raise CheckpointError(f"its accuracies on the {name} sets are not those of this run")
    return found
