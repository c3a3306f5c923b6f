"""Prediction by the nearest mean of the stored samples' features."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch, Tree, tree_parts
from ..batchnorm import versions
from ..errors import InvalidInput
from ..heads import find_head, outputs
from ..losses import at_least_float32, class_logits, class_targets
from ..memory import Memory
from ..memory.index import in_parts
from ..network import Network
from ..serving import FrozenNetwork, Served
from .steps import StepLearner

AT_ONCE: Final = 1000


class NearestMean:
    """Predict the class with the nearest mean feature of the stored samples.

    The feature φ(x) is what enters the head in eval mode, scaled to length one; so is each mean. The logits are minus
    the distances, which order the classes as the cosine does; −∞ for classes without stored samples. Means are computed
    again when the model or the memory has changed.
    """

    def __init__(
        self,
        network: Network,
        memory: Memory,
        substitutes: Callable[[], dict[str, Tensor]] = dict,
        head: str | None = None,
    ) -> None:
        """Combine the parts.

        Args:
            network: Has a last linear layer.
            memory: Has the samples, with one class each.
            substitutes: Returns tensors to use in place of the network's own.
            head: The name of the module that features enter; by default that of the last linear layer.

        Raises:
            InvalidInput: If the model has no linear layer, or no module of this name.
        """
        last, _ = find_head(network.model)
        self.head = last if head is None else head
        if self.head not in dict(network.model.named_modules()):
            raise InvalidInput(f"the {network.name} has no module {head!r}, which head names")
        self.network, self.memory, self.substitutes = network, memory, substitutes
        self._cached: tuple[list[object], tuple[Tensor, Tensor]] | None = None

    def check(self, y: Tensor) -> Tensor:
        """Return targets as labels, or raise an error if they are not one class each."""
        return class_targets(class_logits(torch.empty(len(y), outputs(self.network.model), device="meta"), y), y)

    def logits(self, x: Tree) -> Tensor:
        """Return minus the distance of φ(x) to the mean of each class."""
        return minus_distances(self.features(x), *self.means(), outputs(self.network.model))

    def features(self, x: Tree) -> Tensor:
        """Return φ(x) of inputs that are not prepared yet."""
        network = self.network
        with network.looking("evaluation"):
            tensors = network.twin.tensors() | self.substitutes()
            ask = partial(network.logits_and_features, tensors=tensors, name=self.head)
            return unit(torch.cat([ask(network.ready(part))[1] for part in tree_parts(x)]))

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the classes that samples are stored of, and the mean of φ over the samples of each."""
        slots, device = self.memory.slots(), self.network.device
        if not len(slots):
            return torch.empty(0, dtype=torch.long, device=device), torch.empty(0, 0, device=device)
        now = [device, *versions(self.network.model, self.memory)]
        if self._cached is None or self._cached[0] != now:
            parts = [self.memory.get(some) for some in in_parts(slots, AT_ONCE)]
            with torch.autocast(device.type, enabled=False):  # they outlive the caller's
                features = torch.cat([self.features(part.x) for part in parts])
            y = torch.cat([part.y for part in parts])
            self._cached = now, class_means(features, y.long().to(device))
        return self._cached[1]

    def served(self) -> Served:
        """Return the same as a module with tensors of its own."""
        labels, means = self.means()
        answer = partial(nearest_means, labels=labels, means=means, outputs=outputs(self.network.model))
        served = Served(FrozenNetwork(self.network, self.substitutes(), until=self.head), answer)
        some = self.memory.get(self.memory.slots()[:1]).x if len(self.memory) else None
        if some is not None and not torch.equal(served(some), self.logits(some)):
            raise InvalidInput(
                f"a predictor by the nearest mean needs a model whose output is that of {self.head!r}, its last layer"
            )
        return served


class NearestMeanLearner(StepLearner):
    """A learner that predicts by the nearest mean alone."""

    nearest: NearestMean

    def _accept(self, x: Tree, y: Any, task: Any, **columns: Any) -> Batch:
        incoming = super()._accept(x, y, task, **columns)
        self.nearest.check(incoming.y)
        return incoming

    def _evaluate(self, x: Tree) -> Tensor:
        return self.nearest.logits(x)

    def _served(self) -> Served:
        return self.nearest.served()


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
        if features.shape[1] != means.shape[1]:
            what = f"features of size {features.shape[1]}, the stored samples of size {means.shape[1]}"
            raise InvalidInput(f"these inputs have {what}; pass inputs of the shape that was learned")
        logits[:, labels] = -torch.cdist(features, means, compute_mode="donot_use_mm_for_euclid_dist")
    return logits


def nearest_means(body: Network, x: Tree, labels: Tensor, means: Tensor, outputs: int) -> Tensor:
    """Return `minus_distances` of inputs, whose features are what the body returns."""
    return minus_distances(unit(body(body.ready(x))), labels, means, outputs)
