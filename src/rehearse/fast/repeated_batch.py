"""Several steps of plain SGD on the same samples, without the first layer's weight.

Over samples X with outputs A = X Wᵀ of the first layer, whose gradient is Δ,

    W ← W − α ΔᵀX   moves   A   by   −α (X Xᵀ) Δ

For n samples of d features and m outputs that is n²m operations in place of 2ndm. The weight itself is stepped once,
at the commit: W ← W − α (ΣΔ)ᵀX.
"""

from __future__ import annotations

import math
from functools import partial
from operator import call
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..batch import Tree
from ..errors import InvalidInput, NotFinite
from ..network import NamedGradient, Network, is_plain_sgd, rate, watched
from ..undo import Operations


class Affine(Protocol):
    """A layer x Wᵀ + b."""

    weight: Tensor
    bias: Tensor


@runtime_checkable
class LinearFirst(Protocol):
    """A model that computes rest(x Wᵀ + b) of flattened inputs x; ``rest`` does not use W.

    Its class defines ``first``, ``rest`` and ``forward`` together.
    """

    @property
    def first(self) -> Affine:
        """The layer with W and b."""

    def rest(self, activations: Tensor) -> Tensor:
        """Turn the first layer's outputs into logits."""


class RepeatedBatch:
    """The descent for a `LinearFirst` model; `repeated_batch` says when it applies."""

    def __init__(self, network: Network, model: LinearFirst, x: Tensor) -> None:
        """Multiply out X Xᵀ and X Wᵀ."""
        self.others = network.trainable()
        self.network, self.model, self.x, self.weight = network, model, x, model.first.weight
        self.name = next(name for name, (parameter, _) in self.others.items() if parameter is self.weight)
        self.rate = rate(self.others.pop(self.name)[1])
        self.products, self.outputs = x @ x.t(), x @ self.weight.detach().t()
        self.sum = torch.zeros_like(self.outputs)
        self.leaf, self.delta, self.found = self.outputs, self.outputs, NamedGradient()

    def forward(self) -> Tensor:
        """See `PlainDescent.forward`."""
        self.leaf = self.outputs.detach().requires_grad_()
        self.network.samples_passed += len(self.x)
        return self.model.rest(self.leaf + self.model.first.bias)

    def step(self, loss: Tensor) -> Operations:
        """See `PlainDescent.step`."""
        wanted = [self.leaf, self.weight, *(parameter for parameter, _ in self.others.values())]
        self.delta, again, *values = torch.autograd.grad(loss, wanted, allow_unused=True)
        if again is not None:
            raise InvalidInput(f"{type(self.model).__name__}.rest must not use the weight of `first`")
        named = zip(self.others, values, strict=True)
        self.found = NamedGradient({name: value for name, value in named if value is not None})
        if not math.isfinite(NamedGradient(self.found, delta=self.delta).norm()):
            raise NotFinite("the gradient is not finite: the learning rate may be too high for this batch")
        found = [(*self.others[name], value) for name, value in self.found.items()]
        steps = [partial(own.detach().sub_, value, alpha=rate(group)) for own, group, value in found]
        moved = partial(self.outputs.addmm_, self.products, self.delta, alpha=-self.rate)
        return map(call, [*steps, moved, partial(self.sum.add_, self.delta)])

    def finish(self) -> Operations:
        """See `PlainDescent.finish`: the first layer's weight."""
        return map(call, [partial(self.weight.detach().addmm_, self.sum.t(), self.x, alpha=-self.rate)])

    def gradient(self) -> NamedGradient:
        """See `PlainDescent.gradient`."""
        return NamedGradient({**self.found, self.name: self.delta.t() @ self.x})


def repeated_batch(network: Network, x: Tree) -> RepeatedBatch | None:
    """Return the descent if it can replace the plain one for the model as it is now, and for inputs like these."""
    model, full = network.model, network.precision.training == torch.float32
    if not isinstance(x, Tensor) or not isinstance(model, LinearFirst) or network.clip is not None or not full:
        return None
    if not _splits(type(model)) or not is_plain_sgd(network.optimizer) or torch.is_autocast_enabled(x.device.type):
        return None
    weight, x = model.first.weight, x.flatten(1)
    trained = any(parameter is weight for parameter, _ in network.trainable().values())
    fits = x.shape[1] == weight.shape[1] and x.dtype == weight.dtype and len(x) < weight.shape[1]
    subclass = isinstance(model.first, nn.Linear) and type(model.first) is not nn.Linear
    hooked = watched(network.model.modules()) or bool(weight._backward_hooks)
    if hooked or subclass or not isinstance(model.first.bias, Tensor):
        return None
    return RepeatedBatch(network, model, x) if trained and fits else None


def _splits(kind: type) -> bool:
    """Whether ``first`` and ``rest`` were written together with ``forward``: a subclass may have another forward."""
    written = [next((one for one in kind.__mro__ if name in vars(one)), None) for name in ("forward", "first", "rest")]
    return written[0] is not None and written[0] is written[1] is written[2]
