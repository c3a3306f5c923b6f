"""ER-ACE: a loss that treats incoming and replayed samples differently."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch, Kind
from .base import class_logits, class_targets
from .convert import per_sample


class AsymmetricCrossEntropy:
    """ACE (Caccia et al. 2022): incoming samples do not lower the logits of absent classes.

        incoming   ℓ = −log ( exp(s_y) / Σ_{c ∈ C(B_n)} exp(s_c) )     over the classes of the incoming batch alone
        replayed   ℓ = −log ( exp(s_y) / Σ_c exp(s_c) )                over all outputs

    Differs from the source: the loss of replayed samples is over all outputs instead of all classes seen so far, so
    that the loss needs no state. Outputs of classes that were never seen only ever decrease.
    """

    kind: Kind | None = "classes"

    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""
        logits = class_logits(logits, batch.y)
        y = batch.y.long() if replayed else class_targets(logits, batch.y)
        if not replayed:
            absent = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
            absent[y] = False
            logits = logits.masked_fill(absent.view(-1, *[1] * (logits.ndim - 2)), -torch.inf)
        return per_sample(F.cross_entropy(logits, y, reduction="none"), len(batch))
