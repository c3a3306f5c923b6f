"""Linear layers as they would be after a step of plain SGD, found from the factors of its gradient.

    x (W − α ΔᵀX)ᵀ = x Wᵀ − α (x Xᵀ) Δ

The stepped weight is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .chain import ChainPass, Link
from .gradients import FactoredGradient, Factors, Gradient, ReplacedForwards, rate
from .parts import Parts, Stepped


class Foreseen:
    """Linear layers as they would be after a step: θ − α∇ℓ for the weights that are known by their factors.

    Used for two passes of the same rows, the first under θ, the second (after `step`) under the stepped parameters.
    Where the first linear layer sees the same input in both, its second output is a correction of the first.
    """

    def __init__(self, parts: Parts, factors: Mapping[str, Factors]) -> None:
        names = {id(parts.stepped[name][0]): name for name in factors if name in parts.stepped}
        layers = {linear: names[id(linear.weight)] for linear in parts.linears if id(linear.weight) in names}
        self.weights = set(layers.values())
        # In the second pass nothing stands in the weights' place, so that whoever reads one behind its layer's back
        # comes to grief instead of to the weight of before.
        self.absent = {name: torch.empty_like(parts.stepped[name][0], device="meta") for name in self.weights}
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
        weight = linear.weight

        def forward(input: Tensor) -> Tensor:
            self._passed.add(linear)
            if not self._stepped:
                output = F.linear(input, linear.weight, linear.bias)
                if self._first is None and input.ndim == 2 and not output.is_inference():
                    self._first = (linear, input, output, output._version, linear.bias)
                return output
            if input.ndim != 2:
                return F.linear(input, torch.add(weight, factors.product(), alpha=-alpha), linear.bias)
            base = self._corrected(linear, input)
            if base is None:
                base = F.linear(input, weight, linear.bias)
            return base.addmm_(input @ factors.inputs.t(), factors.deltas, alpha=-alpha)

        return forward

    def _corrected(self, linear: nn.Linear, x: Tensor) -> Tensor | None:
        """What the layer gave before, with the new bias, if it is the first layer and sees the same again."""
        first, self._first = self._first, None
        if first is None or first[0] is not linear or first[2]._version != first[3] or not torch.equal(first[1], x):
            return None
        _, _, output, _, bias = first
        return output.clone() if bias is None else output + (linear.bias - bias)


def pass_before_and_after(
    links: Sequence[Link], gradient: FactoredGradient, stepped: Stepped, x: Tensor
) -> tuple[ChainPass, Tensor]:
    """The pass of a chain under θ, and the scores after the step: both sets of rows in one product a layer.

    Where a weight is known by its factors, both share x Wᵀ, and the second half is corrected; only for inputs that
    `can_pass`.
    """
    n, x = len(x), x.flatten(1)
    inputs: list[Tensor] = []
    for link in links:
        inputs.append(x[:n])
        weight, bias = link.linear.weight, link.linear.bias
        factors = gradient.factors.get(link.weight)
        if factors is None:
            moved = _moved(link.weight, weight, gradient, stepped), _moved(link.bias, bias, gradient, stepped)
            x = torch.cat([F.linear(x[:n], weight, bias), F.linear(x[-n:], *moved)])
        else:
            shared = F.linear(x, weight, bias)
            if len(shared) == n:  # at first both see the same rows
                shared = torch.cat([shared, shared])
            after, alpha = shared[n:], rate(stepped[link.weight][1])
            likeness = x[-n:] @ factors.inputs.t()
            if link.bias in gradient and link.bias in stepped:
                bias_alpha = rate(stepped[link.bias][1])
                if gradient.biases.get(link.bias) == link.weight and bias_alpha == alpha:
                    likeness.add_(1)  # the bias is the weight of an input that is always 1
                else:
                    after.sub_(gradient[link.bias], alpha=bias_alpha)
            after.addmm_(likeness, factors.deltas, alpha=-alpha)
            x = shared
        if link.relu:
            x = x.relu_()
    return ChainPass(links, inputs, x[:n].clone()), x[n:]


def _moved(name: str, parameter: Tensor, gradient: Gradient, stepped: Stepped) -> Tensor:
    if name not in gradient or name not in stepped:
        return parameter
    return torch.add(parameter, gradient[name], alpha=-rate(stepped[name][1]))
