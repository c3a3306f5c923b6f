"""Linear layers as they would be after a step of plain SGD, found from the factors of its gradient.

    x (W − α ΔᵀX)ᵀ = x Wᵀ − α (x Xᵀ) Δ

The stepped weight is never written. Used for two passes of the same rows, the first under θ, the second (after `step`)
under the stepped parameters: where the first layer sees the same input in both, its second output is a correction of
the first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .chain import ChainPass, Link, can_pass, pass_chain
from .gradients import FactoredGradient, Factors, Gradient, ReplacedForwards, rate
from .parts import Parts


class AfterStep(Protocol):
    """Parameters (``weights``, by name) whose step is foreseen here and need not be made; and the pass ``before`` it,
    where training would make the same."""

    weights: set[str]
    before: ChainPass | None

    def installed(self) -> ReplacedForwards: ...

    def step(self, stepped: bool = True) -> None: ...

    @property
    def complete(self) -> bool: ...


def after_step(parts: Parts, gradient: Gradient) -> AfterStep:
    """What can be foreseen of this gradient without writing the stepped weights."""
    factors = gradient.factors if isinstance(gradient, FactoredGradient) else {}
    if factors and parts.chain is not None:
        return ForeseenChain(parts, gradient)
    return Foreseen(parts, factors)


class Foreseen:
    """Linear layers as they would be after a step: θ − α∇ℓ for the weights that are known by their factors.

    Used for two passes of the same rows, the first under θ, the second (after `step`) under the stepped parameters.
    Where the first linear layer sees the same input in both, its second output is a correction of the first.
    """

    def __init__(self, parts: Parts, factors: Mapping[str, Factors]) -> None:
        names = {id(parts.stepped[name][0]): name for name in factors if name in parts.stepped}
        layers = {linear: names[id(linear.weight)] for linear in parts.linears if id(linear.weight) in names}
        self.weights = set(layers.values())
        self.before: ChainPass | None = None
        self._layers = {linear: (factors[name], rate(parts.stepped[name][1])) for linear, name in layers.items()}
        self._stepped = False
        self._first: tuple[nn.Linear, Tensor, Tensor, int, Tensor | None] | None = None
        self._passed: set[nn.Linear] = set()

    def installed(self) -> ReplacedForwards:
        return ReplacedForwards({linear: self._forward(linear) for linear in self._layers})

    def step(self, stepped: bool = True) -> None:
        self._stepped = stepped
        self._passed.clear()

    @property
    def complete(self) -> bool:
        """Whether the pass went through every such layer, so that none was used behind our back."""
        return len(self._passed) == len(self._layers)

    def _forward(self, linear: nn.Linear) -> Callable[[Tensor], Tensor]:
        factors, alpha = self._layers[linear]

        def forward(x: Tensor) -> Tensor:
            self._passed.add(linear)
            if not self._stepped:
                output = F.linear(x, linear.weight, linear.bias)
                if self._first is None and x.ndim == 2:
                    self._first = (linear, x, output, output._version, linear.bias)
                return output
            if x.ndim != 2:
                return F.linear(x, torch.add(linear.weight, factors.product(), alpha=-alpha), linear.bias)
            base = self._corrected(linear, x)
            if base is None:
                base = F.linear(x, linear.weight, linear.bias)
            return base.addmm_(x @ factors.inputs.t(), factors.deltas, alpha=-alpha)

        return forward

    def _corrected(self, linear: nn.Linear, x: Tensor) -> Tensor | None:
        """What the layer gave before, with the new bias, if it is the first layer and sees the same again."""
        first, self._first = self._first, None
        if first is None or first[0] is not linear or first[2]._version != first[3] or not torch.equal(first[1], x):
            return None
        _, _, output, _, bias = first
        return output.clone() if bias is None else output + (linear.bias - bias)


class ForeseenChain:
    """A whole chain of linear layers as it would be after a step."""

    def __init__(self, parts: Parts, gradient: Gradient) -> None:
        assert parts.chain is not None
        self._links, self._model = parts.chain, parts.modules[0]
        self._gradient, self._parts = gradient, parts
        names = (name for link in parts.chain for name in (link.weight, link.bias))
        self.weights = {name for name in names if name in gradient and name in parts.stepped}
        self._stepped = self.complete = False
        self.before: ChainPass | None = None  # the pass under θ
        self._given: tuple[Tensor, int] | None = None

    def installed(self) -> ReplacedForwards:
        return ReplacedForwards({self._model: self._forward})

    def step(self, stepped: bool = True) -> None:
        self._stepped = stepped
        self.complete = False

    def _forward(self, *arguments: Any, **keywords: Any) -> Tensor:
        if keywords or not can_pass(self._links, arguments):
            plain: Tensor = type(self._model).forward(self._model, *arguments, **keywords)
            return plain
        self.complete = True
        x: Tensor = arguments[0]
        if not self._stepped:
            self.before, self._given = pass_chain(self._links, x), (x, x._version)
            return self.before.scores.detach()
        known = self._first_of(x)
        x = x.flatten(1)
        for link in self._links:
            x, known = self._after(link, x, known), None
            if link.relu:
                x = x.relu_()
        return x

    def _first_of(self, x: Tensor) -> Tensor | None:
        """What the first layer gave before the step, if it sees the same rows again."""
        if self.before is None or self._given is None:
            return None
        given, version = self._given
        return self.before.first if given is x and version == x._version else None

    def _after(self, link: Link, x: Tensor, before: Tensor | None) -> Tensor:
        """What the layer gives after the step; ``before`` is what it gave of the same rows, where that is known."""
        weight, bias = link.linear.weight, self._moved(link.bias, link.linear.bias)
        factors = self._gradient.factors.get(link.weight) if isinstance(self._gradient, FactoredGradient) else None
        if factors is None:
            return F.linear(x, self._moved(link.weight, weight), bias)
        if before is None:
            outputs = F.linear(x, weight, bias)
        else:
            outputs = before.clone() if link.bias not in self.weights else before + (bias - link.linear.bias)
        return outputs.addmm_(x @ factors.inputs.t(), factors.deltas, alpha=-rate(self._parts.stepped[link.weight][1]))

    def _moved(self, name: str, parameter: Tensor) -> Tensor:
        if name not in self.weights:
            return parameter
        return torch.add(parameter, self._gradient[name], alpha=-rate(self._parts.stepped[name][1]))
