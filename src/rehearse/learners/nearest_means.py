"""Prediction by the nearest mean of a class."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Tree
from ..losses import at_least_float32
from ..serving import FrozenNetwork, Served


class NearestMeans(Served):
    """From inputs to minus their features' distance to the mean of each class."""

    labels: Tensor
    means: Tensor

    def __init__(self, body: FrozenNetwork, labels: Tensor, means: Tensor, outputs: int) -> None:
        """Serve from means.

        Args:
            body: From inputs to what enters the head.
            labels: The classes that have a mean.
            means: One for each of them.
            outputs: The number of all classes.
        """
        super().__init__(body)
        self.register_buffer("labels", labels)
        self.register_buffer("means", means)
        self.outputs = outputs

    def forward(self, x: Tree) -> Tensor:
        """Return the logits of inputs."""
        return minus_distances(unit(self.network(self.ready(x))), self.labels, self.means, self.outputs)


def unit(features: Tensor) -> Tensor:
    """Return features as vectors of length one."""
    return F.normalize(at_least_float32(features).flatten(1), dim=1)


def minus_distances(features: Tensor, labels: Tensor, means: Tensor, outputs: int) -> Tensor:
    """Return minus the distance to the mean of each class; −∞ for classes without one, 0 if there is none at all."""
    logits = features.new_full((len(features), outputs), -torch.inf if len(labels) else 0.0)
    if len(labels):
        logits[:, labels] = -torch.cdist(features, means, compute_mode="donot_use_mm_for_euclid_dist")
    return logits
