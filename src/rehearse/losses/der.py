"""DER++: a loss that also compares with stored logits."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from ..batch import Batch, Kind
from ..checks import check_not_negative
from ..described import Described
from ..errors import InvalidInput
from .base import at_least_float32
from .convert import as_loss, counted

DRAW: Final = "draw"
"""A column of replayed batches: which of several draws a sample is of."""


class DarkExperience(Described):
    """DER++ (Buzzega et al. 2020): samples are replayed with the logits that the network gave them on arrival.

        incoming   ℓ
        replayed   α · mean_c (s_c − s̃_c)² + β · ℓ          s̃: the logits stored when the sample arrived

    ℓ is the ``loss``, cross-entropy by default; β = 0 is DER. The mean is over the logits that were stored: outputs
    that a head has gained since take no part.

    Differs from the source: one replayed batch has both terms. Retrieved by `lab.draws.Draws(…, 2)`, the first draw
    has the α term and the second the β term, as published.
    """

    def __init__(self, alpha: float = 0.1, beta: float = 0.5, loss: Any = None) -> None:
        """Set the weights ``alpha`` (α) and ``beta`` (β), and ℓ."""
        check_not_negative(alpha=alpha, beta=beta)
        self.alpha, self.beta, self.loss = alpha, beta, as_loss(loss)
        self.kind: Kind | None = self.loss.kind
        self.counts = getattr(self.loss, "counts", None)

    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""
        if not replayed:
            return self.loss(logits, batch, False)
        distance = counted(_distance(at_least_float32(logits), batch.columns["logits"]), self.loss, batch)
        error = self.loss(logits, batch, True)
        if DRAW not in batch.columns:
            return self.alpha * distance + self.beta * error
        if int(batch.columns[DRAW].max()) > 1:
            raise InvalidInput("DER++ has two terms, so at most two draws: Draws(retrieval, 2)")
        # Each draw is half of the batch, and the mean over the batch is taken later.
        return 2 * torch.where(batch.columns[DRAW] == 0, self.alpha * distance, self.beta * error)

    def columns(self, logits: Tensor) -> dict[str, Tensor]:
        """Return the ``logits``, to be stored."""
        return {"logits": at_least_float32(logits.detach())}


def _distance(logits: Tensor, stored: Tensor) -> Tensor:
    """Return the mean squared distance of each sample's logits from its stored ones; NaN was not stored."""
    logits = logits[:, : stored.shape[1]]
    known = ~stored.isnan()
    differences = logits - torch.where(known, stored, logits.detach())
    return differences.square().flatten(1).sum(1) / known.flatten(1).sum(1).clamp(min=1)
