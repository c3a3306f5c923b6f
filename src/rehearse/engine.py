"""Engine: what a replay learner asks of a network. `Plain` is the reference for every engine in `fast/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from .batch import Batch, Tree, given, tree_concatenate, tree_map
from .batchnorm import BatchNormPolicy
from .errors import InvalidInput
from .heads import find_head
from .losses import Loss
from .network import NamedGradient, Network, Tensors, VirtualStep, finite
from .network.accelerate import offers
from .undo import Operations

Layers = Literal["all", "head"]


class Passed(NamedTuple):
    """A training pass: the mean loss, its gradient, the logits; for two batches in one pass also the second loss.

    Only the engine that made a gradient can read it (``engine.named(gradient)`` is a dict by parameter name);
    ``gradient.plus(other, weight)`` is gradient + weight × other.
    """

    loss: float
    gradient: Any
    logits: Tree
    replayed_loss: float | None = None


class Engine(Protocol):
    """Computes gradients, losses before and after the virtual step, and steps."""

    def gradient(self, batch: Batch, *, replayed: bool) -> Passed:
        """Pass a batch in train mode and differentiate its mean loss."""

    def joint_gradient(self, incoming: Batch, replayed: Batch, weight: float) -> Passed:
        """Pass both batches at once and differentiate mean ℓ(incoming) + weight × mean ℓ(replayed)."""

    def losses(
        self, batch: Batch, gradient: Any = None, *, virtual_step: VirtualStep = "sgd", layers: Layers = "all"
    ) -> tuple[Tensor, Tensor]:
        """Return ℓ(f_θ(x), y) and ℓ(f_θᵛ(x), y), one value per sample; without a gradient θᵛ = θ, and one pass."""

    def named(self, gradient: Any) -> NamedGradient:
        """Return a gradient as a dict: one tensor for each parameter, by its name in the model."""

    def step(self, gradient: Any) -> Operations:
        """Prepare the optimizer's step; what remains to be done is for the caller's commit."""


class Plain:
    """The engine for every model and optimizer."""

    def __init__(
        self, network: Network, loss: Loss, batchnorm: BatchNormPolicy, prepare: Callable[[Tree], Tree] | None = None
    ) -> None:
        """Combine a network with a loss.

        Args:
            network: The network to train.
            loss: Returns one value per sample.
            batchnorm: Receives the buffers that scoring moved, if it asks for them.
            prepare: Turns the inputs of batches into the model's; by default ``network.prepare``.

        ``cut`` may be set to `Padding.cut`: every pass is then as long as its longest sequence.
        """
        self.network, self.loss, self.batchnorm = network, loss, batchnorm
        self.prepare = prepare or network.prepare
        self.cut: Callable[..., tuple[Batch, ...]] = given
        self.step: Callable[[Any], Operations] = network.step
        self._offers = offers("ENGINES", network.model)

    def fastest(self, x: Tree) -> Engine:
        """Return the engine to use for inputs like these and the model as it is now."""
        return next(filter(None, [offer(self, x) for offer in self._offers]), self)

    def gradient(
        self, batch: Batch, *, replayed: bool, tensors: Tensors | None = None, dtype: torch.dtype | None = None
    ) -> Passed:
        """See `Engine.gradient`; with the twin and these tensors, if there are any, and by default as in training."""
        (batch,) = self.cut(batch.to(self.network.device))
        logits = self.network(self.prepare(batch.x), tensors, dtype)
        loss = batch.mean_loss(self.loss, logits, replayed)
        return Passed(finite(loss), self.network.gradient(loss), tree_map(Tensor.detach, logits))

    def virtual_gradient(self, batch: Batch) -> Passed:
        """Do the same as `gradient` for a batch of the stream, and leave the model's buffers as they are."""
        with self.network.looking("training"):
            return self.gradient(batch, replayed=False, tensors=self.network.twin.tensors())

    def joint_gradient(self, incoming: Batch, replayed: Batch, weight: float) -> Passed:
        """See `Engine.joint_gradient`."""
        incoming, replayed = self.cut(incoming.to(self.network.device), replayed.to(self.network.device))
        n, logits = len(incoming), self.network(self.prepare(joined(incoming, replayed).x))
        own, others = tree_map(lambda leaf: leaf[:n], logits), tree_map(lambda leaf: leaf[n:], logits)
        first, second = incoming.mean_loss(self.loss, own, False), replayed.mean_loss(self.loss, others, True)
        gradient = self.network.gradient(first + weight * second)
        return Passed(finite(first), gradient, tree_map(Tensor.detach, own), finite(second))

    def losses(
        self, batch: Batch, gradient: Any = None, *, virtual_step: VirtualStep = "sgd", layers: Layers = "all"
    ) -> tuple[Tensor, Tensor]:
        """See `Engine.losses`. Without dropout; batch-norm uses the statistics of this batch."""
        network, (batch,) = self.network, self.cut(batch.to(self.network.device))
        x = self.prepare(batch.x)
        with network.looking("scoring"):
            tensors = network.twin.tensors()
            if layers == "head" and gradient is not None:
                before, after = self._logits_of_head(x, tensors, gradient, virtual_step)
            else:
                before = after = network(x, tensors, network.precision.scoring)
                if gradient is not None:
                    ahead = network.twin.tensors() | network.look_ahead(gradient, virtual_step)
                    after = network(x, ahead, network.precision.scoring)
            if self.batchnorm.follows_scoring:
                self.batchnorm.scored(network.model, tensors)
            return batch.weighted(self.loss(before, batch, True)), batch.weighted(self.loss(after, batch, True))

    def named(self, gradient: NamedGradient) -> NamedGradient:
        """See `Engine.named`."""
        return gradient

    def _logits_of_head(
        self, x: Tree, tensors: dict[str, Tensor], gradient: NamedGradient, virtual_step: VirtualStep
    ) -> tuple[Tensor, Tensor]:
        """Return the logits before and after a virtual step of the last layer alone: one pass through the body."""
        name, head = find_head(self.network.model)
        before, features = self.network.logits_and_features(x, tensors, name, self.network.precision.scoring)
        names = {id(parameter): key for key, parameter in self.network.model.named_parameters()}
        keys = [names[id(own)] for own in (head.weight, head.bias) if own is not None]  # a tied one has another name
        if virtual_step == "sgd":  # the optimizer's step is clipped by the norm of the whole gradient
            gradient = NamedGradient({key: gradient[key] for key in keys if key in gradient})
        ahead = tensors | self.network.look_ahead(gradient, virtual_step)
        now, then = ([of[key].to(features.dtype) for key in keys] for of in (tensors, ahead))
        if not torch.equal(linear(features, *now).to(before.dtype), before):
            raise InvalidInput(f"layers='head' needs a model whose output is that of {name!r}, its last layer")
        return before, linear(features, *then)


def joined(first: Batch, second: Batch) -> Batch:
    """Return the inputs and targets of two batches as one batch."""
    return Batch(*tree_concatenate([(first.x, first.y), (second.x, second.y)]))
