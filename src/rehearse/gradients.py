"""Gradients by parameter name, those of linear layers as factors.

Over n rows with inputs X and output gradients Δ, the gradient of a linear layer's weight is ΔᵀX: two thin matrices,
which are multiplied out only when somebody looks. Until then two gradients are added by putting the rows of their
factors together, and what the layer would give after a step of α is found without the stepped weight:

    x (W − α ΔᵀX)ᵀ = x Wᵀ − α (x Xᵀ) Δ
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from .errors import InvalidInput
from .parts import Parts, Stepped, stepped_parameters

Gradient = Mapping[str, Tensor]


def rate(group: Mapping[str, Any]) -> float:
    """α of a parameter group: how far plain SGD goes against the gradient."""
    return float(group["lr"]) * (-1 if group.get("maximize") else 1)


def by_rate(stepped: Stepped) -> dict[float, list[str]]:
    """The parameters' names, by learning rate: most often there is one."""
    names: dict[float, list[str]] = {}
    for name, (_, group) in stepped.items():
        names.setdefault(rate(group), []).append(name)
    return names


class Factors(NamedTuple):
    """What went into a linear layer, and the gradient of what came out, a row each."""

    inputs: Tensor
    deltas: Tensor

    def product(self) -> Tensor:
        return self.deltas.t() @ self.inputs


class FactoredGradient(Mapping[str, Tensor]):
    """A gradient by name, like a dict; entries that are known by their factors are multiplied out at first sight."""

    def __init__(self, values: dict[str, Tensor], factors: dict[str, Factors]) -> None:
        self.factors = factors
        self._values = values
        self._names = [*factors, *(name for name in values if name not in factors)]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._values:
            self._values[name] = self.factors[name].product()
        return self._values[name]

    def __contains__(self, name: object) -> bool:  # without multiplying out, unlike Mapping's own
        return name in self._values or name in self.factors

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


# ------------------------------------------------------------------------------------------- taking a gradient


class Use(NamedTuple):
    """One use of a linear layer in a forward pass."""

    weight: Tensor
    inputs: Tensor
    version: int
    output: GradientEdge


class linear_uses:
    """Inside the block linear layers hide their weight from autograd and note how they are used instead.

    For `gradient_of`, which must be called inside the block too. Any other use of the same weight is left to
    autograd and added. A layer whose factors would be no smaller than its weight is left alone.
    """

    def __init__(self, parts: Parts) -> None:
        self._uses: list[Use] = []
        self._replaced = ReplacedForwards({linear: _noting(linear, self._uses) for linear in parts.linears})

    def __enter__(self) -> list[Use]:
        self._replaced.__enter__()
        return self._uses

    def __exit__(self, *exception: object) -> None:
        self._replaced.__exit__()


def loss_gradient(loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> Gradient:
    """∇loss by parameter name, without touching ``.grad``."""
    return gradient_of(loss, stepped_parameters(model, optimizer))


def gradient_of(loss: Tensor, stepped: Stepped, uses: Sequence[Use] = ()) -> Gradient:
    """∇loss by parameter name, without touching ``.grad``; factored where linear layers were noted."""
    parameters = [parameter for parameter, _ in stepped.values()]
    if not uses:
        values = torch.autograd.grad(loss, parameters, allow_unused=True)
        return {name: value for name, value in zip(stepped, values, strict=True) if value is not None}
    names = {id(parameter): name for name, (parameter, _) in stepped.items()}
    uses = [use for use in uses if id(use.weight) in names]
    wanted: list[Any] = [*parameters, *(use.output for use in uses)]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    direct = {name: value for name, value in zip(stepped, found, strict=False) if value is not None}
    factors: dict[str, Factors] = {}
    for use, deltas in zip(uses, found[len(parameters) :], strict=True):
        if use.inputs._version != use.version:
            raise InvalidInput("the input of a linear layer was changed in place after its use; use a copy instead")
        if deltas is not None:
            name, own = names[id(use.weight)], Factors(use.inputs, deltas)
            factors[name] = stacked(factors[name], own) if name in factors else own
    for name in direct.keys() & factors.keys():  # the weight was used elsewhere too
        direct[name] = direct[name] + factors.pop(name).product()
    return FactoredGradient(direct, factors)


def add_gradients(first: Gradient, second: Gradient, weight: float = 1.0) -> Gradient:
    """first + weight × second, by name; a parameter that one of them lacks has gradient zero there."""
    factors: dict[str, Factors] = {}
    if isinstance(first, FactoredGradient) and isinstance(second, FactoredGradient):
        shared = first.factors.keys() & second.factors.keys()
        factors = {name: stacked(first.factors[name], second.factors[name], weight) for name in shared}
    both = [name for name in first if name in second and name not in factors]
    sums = torch._foreach_add([first[n] for n in both], [second[n] for n in both], alpha=weight) if both else []
    total = dict(zip(both, sums, strict=True))
    total |= {name: first[name] for name in first if name not in second}
    total |= {name: weight * second[name] for name in second if name not in first}
    return FactoredGradient(total, factors) if factors else total


def stacked(first: Factors, second: Factors, weight: float = 1.0) -> Factors:
    deltas = second.deltas if weight == 1 else weight * second.deltas
    return Factors(torch.cat([first.inputs, second.inputs]), torch.cat([first.deltas, deltas]))


# ------------------------------------------------------------------------------------------------- taking a step


def gradient_norm(gradient: Gradient, factored: bool = False) -> float:
    """The norm of the gradient; if factors are to stay ``factored``, a bound of it (‖ΔᵀX‖ ≤ ‖Δ‖ ‖X‖)."""
    factors = gradient.factors if factored and isinstance(gradient, FactoredGradient) else {}
    values = [gradient[name] for name in gradient if name not in factors]
    thin = [matrix for pair in factors.values() for matrix in pair]
    if not values and not thin:
        return 0.0
    norms = torch.stack(torch._foreach_norm([*thin, *values])).tolist()
    bounds = [inputs * deltas for inputs, deltas in zip(norms[: len(thin) : 2], norms[1 : len(thin) : 2], strict=True)]
    norm = math.hypot(*bounds, *norms[len(thin) :])
    return norm if math.isfinite(norm) or not factors else gradient_norm(gradient)


def is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step is θ − α∇ℓ and nothing else: no momentum, decay or hooks, nobody who watches `step`."""
    return (
        type(optimizer) is torch.optim.SGD
        and "step" not in vars(optimizer)
        and not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
        and not any(g["momentum"] or g["weight_decay"] or g["differentiable"] for g in optimizer.param_groups)
    )


def sgd_step(gradient: Gradient, stepped: Stepped) -> None:
    """θ ← θ − α∇ℓ, what plain SGD does. A factored gradient is neither written nor read: θ ← θ − α ΔᵀX at once."""
    factors = gradient.factors if isinstance(gradient, FactoredGradient) else {}
    with torch.no_grad():
        for name, (inputs, deltas) in factors.items():
            parameter, group = stepped[name]
            parameter.addmm_(deltas.t().contiguous(), inputs, alpha=-rate(group))
        for alpha, names in by_rate({name: stepped[name] for name in gradient if name not in factors}).items():
            parameters = [stepped[name][0] for name in names]
            torch._foreach_add_(parameters, [gradient[name] for name in names], alpha=-alpha)


# -------------------------------------------------------------------------------------- linear layers after a step


class Foreseen:
    """Linear layers as they would be after a step: θ − α∇ℓ for the weights that are known by their factors.

    Used for two passes of the same rows, the first under θ, the second (after `step`) under the stepped parameters.
    Where the first linear layer sees the same input in both, its second output is a correction of the first.
    """

    def __init__(self, parts: Parts, factors: Mapping[str, Factors]) -> None:
        names = {id(parts.stepped[name][0]): name for name in factors if name in parts.stepped}
        layers = {linear: names[id(linear.weight)] for linear in parts.linears if id(linear.weight) in names}
        self.weights = set(layers.values())
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


# --------------------------------------------------------------------------------------------- linear layers at work


def _noting(linear: nn.Linear, uses: list[Use]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        weight, bias = linear.weight, linear.bias
        rows, columns = weight.shape
        if x.ndim != 2 or 2 * x.shape[0] * (rows + columns) >= rows * columns or not weight.requires_grad:
            return F.linear(x, weight, bias)
        output = F.linear(x, weight.detach(), bias)
        node = output.grad_fn
        if node is None or output.dtype != weight.dtype or torch._C._are_functorch_transforms_active():
            return F.linear(x, weight, bias)  # nothing to hold on to, autocast, or a transform that hides the graph
        uses.append(Use(weight, x.detach(), x._version, GradientEdge(node, output.output_nr)))
        return output

    return forward


class ReplacedForwards:
    """Inside the block these layers compute by the functions given."""

    def __init__(self, forwards: Mapping[nn.Linear, Callable[[Tensor], Tensor]]) -> None:
        self._forwards = forwards

    def __enter__(self) -> None:
        for linear, forward in self._forwards.items():
            vars(linear)["forward"] = forward

    def __exit__(self, *exception: object) -> None:
        for linear in self._forwards:
            del vars(linear)["forward"]
