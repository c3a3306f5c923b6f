"""Linear layers with ReLUs between them and cross-entropy: computed without autograd.

Over n samples with inputs X and output gradients Δ the gradient of a layer's weight is ΔᵀX. It is kept as these two
thin matrices. Two gradients are added by stacking their rows, and a layer after a step of α needs no stepped weight:

    x (W − α ΔᵀX)ᵀ = x Wᵀ − α (x Xᵀ) Δ
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import chain
from operator import call
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from ..batch import Batch, Tree
from ..engine import Layers, Passed, Plain, joined
from ..errors import InvalidInput
from ..losses import CrossEntropy
from ..network import NamedGradient, VirtualStep, finite, is_plain_sgd, rate, watched
from ..undo import Operations

relu_backward = torch.ops.aten.threshold_backward.default


class Layer(NamedTuple):
    """A linear layer: its parameters, detached (they share memory), and their learning rate."""

    weight: Tensor
    bias: Tensor
    rate: float


class Factors(NamedTuple):
    """A gradient as factors: X and Δ of every layer, one row per sample."""

    inputs: list[Tensor]
    deltas: list[Tensor]

    def plus(self, other: Factors, weight: float = 1.0) -> Factors:
        """Return self + weight × other."""
        scaled = other.deltas if weight == 1 else [weight * delta for delta in other.deltas]
        inputs = [torch.cat(pair) for pair in zip(self.inputs, other.inputs, strict=True)]
        return Factors(inputs, [torch.cat(pair) for pair in zip(self.deltas, scaled, strict=True)])

    def norm(self) -> float:
        """Return an upper bound of the norm: ‖ΔᵀX‖ ≤ ‖Δ‖ ‖X‖, and a bias is the weight of an input of 1."""
        norms = torch.stack(torch._foreach_norm([*self.inputs, *self.deltas])).tolist()
        n, samples = len(self.inputs), len(self.deltas[0])
        return math.hypot(*(d * math.hypot(x, math.sqrt(samples)) for x, d in zip(norms[:n], norms[n:], strict=True)))


class Dense:
    """The engine for chains of linear layers; `dense` says when it applies."""

    def __init__(self, plain: Plain, linears: Sequence[nn.Linear], layers: Sequence[Layer]) -> None:
        """Compute what ``plain`` would.

        Args:
            plain: The reference.
            linears: All linear layers of its model, in order.
            layers: The same, as they are used here.
        """
        self.plain, self.linears, self.layers, self.device = plain, linears, layers, layers[0].weight.device

    def gradient(self, batch: Batch, *, replayed: bool) -> Passed:
        """See `Engine.gradient`."""
        batch = batch.to(self.device)
        inputs, logits = self._forward(batch)
        losses, of_logits = map(batch.proportioned, CrossEntropy().with_gradient(logits, batch, replayed))
        return Passed(finite(losses.mean()), self._backward(inputs, of_logits), logits)

    def joint_gradient(self, incoming: Batch, replayed: Batch, weight: float) -> Passed:
        """See `Engine.joint_gradient`."""
        incoming, replayed = incoming.to(self.device), replayed.to(self.device)
        both, n, m = joined(incoming, replayed), len(incoming), len(replayed)
        inputs, logits = self._forward(both)
        losses, of_logits = CrossEntropy().with_gradient(logits, both, False)  # of the mean over all n + m samples
        of_logits[:n] = incoming.proportioned(of_logits[:n]) * ((n + m) / n)
        of_logits[n:] = replayed.proportioned(of_logits[n:]) * (weight * (n + m) / m)
        first, second = incoming.proportioned(losses[:n]).mean(), replayed.proportioned(losses[n:]).mean()
        return Passed(finite(first), self._backward(inputs, of_logits), logits[:n], finite(second))

    def losses(
        self, batch: Batch, gradient: Any = None, *, virtual_step: VirtualStep = "sgd", layers: Layers = "all"
    ) -> tuple[Tensor, Tensor]:
        """See `Engine.losses`: both passes layer by layer, without the look-ahead parameters."""
        if gradient is None or virtual_step == "optimizer":
            named = gradient and self.named(gradient)
            return self.plain.losses(batch, named, virtual_step=virtual_step, layers=layers)
        batch = batch.to(self.device)
        before = after = self._inputs(batch)
        last = len(self.layers) - 1
        for number, (layer, inputs, deltas) in enumerate(zip(self.layers, *gradient, strict=True)):
            first = linear(before, layer.weight, layer.bias)
            second = first if after is before else linear(after, layer.weight, layer.bias)
            if layers == "all" or number == last:
                second = torch.addmm(second, (after @ inputs.t()).add_(1), deltas, alpha=-layer.rate)
            before, after = (first, second) if number == last else (first.relu_(), second.relu_())
        self.plain.network.samples_passed += len(batch) * (2 if layers == "all" else 1)
        loss = self.plain.loss
        return batch.weighted(loss(before, batch, True)), batch.weighted(loss(after, batch, True))

    def step(self, gradient: Factors) -> Operations:
        """See `Engine.step`: W ← W − α ΔᵀX without multiplying out the gradient, for plain SGD."""
        network = self.plain.network
        if network.clip is not None or not is_plain_sgd(network.optimizer) or not math.isfinite(gradient.norm()):
            return self.plain.step(self.named(gradient))
        each = list(zip(self.layers, *gradient, strict=True))
        weights = [partial(layer.weight.addmm_, d.t(), x, alpha=-layer.rate) for layer, x, d in each]
        biases = [partial(layer.bias.sub_, d.sum(0), alpha=layer.rate) for layer, _, d in each]
        return map(call, chain(weights, biases))

    def _inputs(self, batch: Batch) -> Tensor:
        x: Tensor = (whole := self.plain.network.prepare(batch.x)).flatten(1)
        if x.shape[1] != self.layers[0].weight.shape[1] or x.dtype != self.layers[0].weight.dtype:
            raise InvalidInput(f"the model cannot take this batch: inputs of shape {tuple(whole.shape)} and {x.dtype}")
        return x

    def _forward(self, batch: Batch) -> tuple[list[Tensor], Tensor]:
        """Return the inputs of every layer, and the logits."""
        x, inputs = self._inputs(batch), list[Tensor]()
        for layer in self.layers:
            inputs.append(x.relu_() if inputs else x)
            x = linear(x, layer.weight, layer.bias)
        self.plain.network.samples_passed += len(x)
        return inputs, x

    def _backward(self, inputs: list[Tensor], delta: Tensor) -> Factors:
        """Return the gradient, given that of the logits."""
        deltas = [delta]
        for layer, x in zip(self.layers[:0:-1], inputs[:0:-1], strict=True):
            deltas.append(relu_backward(deltas[-1] @ layer.weight, x, 0))
        return Factors(inputs, deltas[::-1])

    def named(self, gradient: Factors) -> NamedGradient:
        """See `Engine.named`: the gradient multiplied out."""
        values: dict[int, Tensor] = {}
        for module, x, delta in zip(self.linears, *gradient, strict=True):
            values |= {id(module.weight): delta.t() @ x, id(module.bias): delta.sum(0)}
        return NamedGradient({name: values[id(p)] for name, (p, _) in self.plain.network.trainable().items()})


def dense(plain: Plain, x: Tree) -> Dense | None:
    """Return the engine if it can replace ``plain`` for the model as it is now, and for inputs like these."""
    network, full = plain.network, plain.network.precision[:2] == (torch.float32, torch.float32)
    if not isinstance(x, Tensor) or not full or torch.is_autocast_enabled(x.device.type):
        return None
    linears = _chain(network.model, x.ndim == 2) if type(plain.loss) is CrossEntropy else []
    groups = network.optimizer.param_groups
    rates = {id(p): rate(group) for group in groups for p in group["params"] if p.requires_grad}
    pairs = [(rates.get(id(own.weight)), rates.get(id(own.bias)), own.weight.device == x.device) for own in linears]
    if not pairs or any(weight is None or weight != bias or not here for weight, bias, here in pairs):
        return None
    parameters = {id(p): p for own in linears for p in (own.weight, own.bias)}
    if len(parameters) < 2 * len(linears) or any(p._backward_hooks for p in parameters.values()):
        return None  # shared parameters, or somebody changes their gradients
    layers = [Layer(own.weight.detach(), own.bias.detach(), rates[id(own.weight)]) for own in linears]
    return Dense(plain, linears, layers)


def _chain(model: nn.Module, flat: bool) -> list[nn.Linear]:
    """Return the linear layers of a model that is a chain without hooks, else nothing.

    Args:
        model: Linear layers with ReLUs between them, in `nn.Sequential` containers.
        flat: Whether the inputs have two dimensions; if not, the model must begin with `nn.Flatten`.
    """
    modules = [module for _, module in model.named_modules(remove_duplicate=False)]  # a repeated one is called again
    container = nn.Sequential.forward
    if watched(modules):
        return []
    parts = [module for module in modules if type(module).forward is not container]
    if parts and type(parts[0]) is nn.Flatten and (parts[0].start_dim, parts[0].end_dim) == (1, -1):
        flat, parts = True, parts[1:]
    linears = [own for own in parts[::2] if type(own) is nn.Linear and own._parameters.get("bias") is not None]
    relus = [module for module in parts[1::2] if type(module) is nn.ReLU]
    chain = len(linears) == len(relus) + 1 and len(linears) + len(relus) == len(parts)
    return linears if chain and flat else []
