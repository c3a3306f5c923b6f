"""Cross-entropy against probabilities."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import at_least_float32


def soft_cross_entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """−Σ q log softmax(logits), one value a row; classes that q does not know yet have probability 0.

    A class that the model rules out by a score of −∞ adds nothing where q is 0, and makes the loss infinite elsewhere.
    """
    logits, q = at_least_float32(logits), _of_all_classes(probabilities, logits)
    lowest = torch.finfo(logits.dtype).min
    return F.cross_entropy(torch.where(q > 0, logits, logits.clamp_min(lowest)), q, reduction="none")


def _of_all_classes(probabilities: Tensor, logits: Tensor) -> Tensor:
    unknown = logits.shape[1] - probabilities.shape[1]
    return F.pad(probabilities, (0, unknown)) if unknown else probabilities
