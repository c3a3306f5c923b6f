"""Exemplars of a class: choosing them, their mean, and prediction by the nearest mean."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Tree
from ..losses import at_least_float32
from ..network import Network


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


def unit(features: Tensor) -> Tensor:
    """Return features as vectors of length one."""
    return F.normalize(at_least_float32(features).flatten(1), dim=1)


def minus_distances(features: Tensor, labels: Tensor, means: Tensor, outputs: int) -> Tensor:
    """Return minus the distance to the mean of each class; −∞ for classes without one, 0 if there is none at all."""
    logits = features.new_full((len(features), outputs), -torch.inf if len(labels) else 0.0)
    if len(labels):
        logits[:, labels] = -torch.cdist(features, means, compute_mode="donot_use_mm_for_euclid_dist")
    return logits


def nearest_means(body: Network, x: Tree, labels: Tensor, means: Tensor, outputs: int) -> Tensor:
    """Return `minus_distances` of inputs, whose features are what the body returns."""
    return minus_distances(unit(body(body.ready(x))), labels, means, outputs)
