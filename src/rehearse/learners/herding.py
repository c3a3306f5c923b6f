"""Exemplars of a class: choosing them, and their mean."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def herding(features: Tensor, n: int) -> Tensor:
    """Return the ``n`` samples (or all) whose running mean stays nearest to the mean of all, best first."""
    features = features.double()
    mean, total = features.mean(0), torch.zeros_like(features[0])
    left = torch.ones(len(features), dtype=torch.bool, device=features.device)
    chosen: list[int] = []
    for k in range(1, min(n, len(features)) + 1):
        distances = (mean - (features + total) / k).norm(dim=1).masked_fill(~left, torch.inf)
        chosen.append(int(distances.argmin()))
        left[chosen[-1]] = False
        total = total + features[chosen[-1]]
    return torch.tensor(chosen, dtype=torch.long, device=features.device)


def class_means(features: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the classes in ``y``, ascending, and the mean of the features of each, scaled to length one."""
    labels = torch.unique(y)
    return labels, F.normalize(torch.stack([features[y == label].mean(0) for label in labels]), dim=1)
