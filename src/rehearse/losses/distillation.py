"""Distillation: a loss that also compares with the averaged weights."""

from __future__ import annotations

from typing import Any, Final

import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch, Kind
from ..checks import check_above_zero, check_not_negative
from ..described import Described
from ..memory.columns import columns_to_store
from .base import class_logits
from .convert import as_loss, counted, per_sample

AVERAGED: Final = "averaged"
"""A column of batches in training: the logits of the averaged weights for the same, augmented inputs."""


class AveragedDistillation(Described):
    """Momentum knowledge distillation (MKD, Michel et al. 2024): learn from the averaged weights too.

        ℓ + weight · T² · KL( softmax(s̄ / T) ‖ softmax(s / T) )        s̄: the logits under the averaged weights

    ℓ is the ``loss``, cross-entropy by default. Needs a learner with ``average=``. The averaged weights see the same
    augmented inputs, with batch-norm statistics of the batch and without dropout. Candidates are scored with ℓ alone,
    and where incoming and replayed samples share a pass so is the look-ahead.

    Differs from the source, whose code distills from several averages of different rates, and also into the logits of
    the inputs as they are stored.
    """

    def __init__(self, weight: float = 5.5, temperature: float = 4.0, loss: Any = None) -> None:
        """Set the ``weight``, the ``temperature`` T, and ℓ; the source has 5.5 and 4."""
        check_not_negative(weight=weight)
        check_above_zero(temperature=temperature)
        self.weight, self.temperature, self.loss = weight, temperature, as_loss(loss)
        self.kind: Kind | None = self.loss.kind
        self.counts = getattr(self.loss, "counts", None)

    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""
        losses = self.loss(logits, batch, replayed)
        if AVERAGED not in batch.columns:
            return losses
        t, dim = self.temperature, getattr(self.loss, "dim", None)
        both = (class_logits(s, batch.y, dim) for s in (logits, batch.columns[AVERAGED]))
        own, taught = (F.log_softmax(s / t, dim=1) for s in both)
        distance = per_sample(F.kl_div(own, taught, reduction="none", log_target=True).sum(1), len(batch))
        return losses + self.weight * t * t * counted(distance, self.loss, batch)

    def columns(self, logits: Tensor) -> dict[str, Tensor]:
        """Return what ℓ wants stored."""
        return columns_to_store(self.loss, logits)


def reads_average(loss: Any) -> bool:
    """Return whether a loss, or one inside it, compares with the averaged weights."""
    return isinstance(loss, AveragedDistillation) or (hasattr(loss, "loss") and reads_average(loss.loss))
