"""Gradients by parameter name, those of linear layers as factors.

Over n rows with inputs X and output gradients Δ, the gradient of a linear layer's weight is ΔᵀX: two thin matrices,
which are multiplied out only when somebody looks. Until then two gradients are added by putting the rows of their
factors together, and what the layer would give after a step of α is found without the stepped weight:

    x (W − α ΔᵀX)ᵀ = x Wᵀ − α (x Xᵀ) Δ
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import optimizer as hooks

from .chain import ChainPass
from .errors import InvalidInput
from .parts import Parts, Stepped, stepped_parameters

Gradient = Mapping[str, Tensor]
SMALL: Final = 1 << 14  # numbers; below that a product takes no longer than the call


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
    """A gradient by name, like a dict; entries that are known by their factors are multiplied out at first sight.

    ``biases`` names biases and the weights that they go with: their gradient is the sum of that weight's Δ, a bias
    being the weight of an input that is always 1.
    """

    def __init__(
        self, values: dict[str, Tensor], factors: dict[str, Factors], biases: Mapping[str, str] | None = None
    ) -> None:
        self.factors, self.biases = factors, biases or {}
        self._values = values
        implied = [*factors, *self.biases]
        self._names = [*implied, *(name for name in values if name not in implied)]

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._values:
            bias = name in self.biases
            self._values[name] = self.factors[self.biases[name]].deltas.sum(0) if bias else self.factors[name].product()
        return self._values[name]

    def __contains__(self, name: object) -> bool:  # without multiplying out, unlike Mapping's own
        return name in self._values or name in self.factors or name in self.biases

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


# ------------------------------------------------------------------------------------------- taking a gradient


@dataclass(eq=False, slots=True)
class Use:
    """One use of a linear layer in a forward pass; Δ is there once the ``wanted`` gradient has come by."""

    weight: Tensor
    inputs: Tensor
    wanted: bool = False
    deltas: Tensor | None = None


class linear_uses:
    """Inside the block linear layers note how they are used, for `gradient_of` to find their gradient as factors.

    The model's pass and `gradient_of` belong inside, the latter because a model may pass again to save memory
    (`torch.utils.checkpoint`); a loss between them does not: what it copies would keep what is replaced here. Any
    other use of the same weight is left to autograd and added. A layer whose factors would be no smaller than its
    weight is left alone.
    """

    def __init__(self, parts: Parts) -> None:
        self._uses: list[Use] = []
        moving = {buffer.untyped_storage().data_ptr() for buffer in parts.buffers().values()}
        self._replaced = ReplacedForwards({linear: _noting(linear, self._uses, moving) for linear in parts.linears})

    def __enter__(self) -> list[Use]:
        self._replaced.__enter__()
        return self._uses

    def __exit__(self, *exception: object) -> None:
        self._replaced.__exit__()


def loss_gradient(loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> Gradient:
    """∇loss by parameter name, without touching ``.grad``."""
    return gradient_of(loss, stepped_parameters(model, optimizer))


def gradient_of(loss: Tensor, stepped: Stepped, uses: Sequence[Use | ChainPass] = ()) -> Gradient:
    """∇loss by parameter name, without touching ``.grad``; factored where linear layers were noted."""
    parameters = [parameter for parameter, _ in stepped.values()]
    if not uses:
        values = _differentiated(loss, parameters)
        return {name: value for name, value in zip(stepped, values, strict=True) if value is not None}
    passes = [use for use in uses if isinstance(use, ChainPass)]
    if passes:
        return _chain_gradient(loss, stepped, parameters, passes)
    names = {id(parameter): name for name, (parameter, _) in stepped.items()}
    used = [use for use in uses if isinstance(use, Use) and id(use.weight) in names]
    for use in used:
        use.wanted = True
    found = _differentiated(loss, parameters)
    direct = {name: value for name, value in zip(stepped, found, strict=True) if value is not None}
    factors: dict[str, Factors] = {}
    for use in used:
        if use.deltas is not None:
            name, own = names[id(use.weight)], Factors(use.inputs, use.deltas)
            factors[name] = stacked(factors[name], own) if name in factors else own
    for name in direct.keys() & factors.keys():  # the weight was used elsewhere too
        direct[name] = direct[name] + factors.pop(name).product()
    return FactoredGradient(direct, factors)


def _differentiated(loss: Tensor, wanted: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    try:
        return torch.autograd.grad(loss, wanted, allow_unused=True)
    except RuntimeError as problem:
        if "modified by an inplace operation" not in str(problem):
            raise
        raise InvalidInput(
            f"something that the gradient needs was changed in place after its use; use a copy instead ({problem})"
        ) from problem


def _chain_gradient(
    loss: Tensor, stepped: Stepped, parameters: Sequence[Tensor], passes: Sequence[ChainPass]
) -> Gradient:
    """Autograd goes from the loss to the scores, and to parameters that the loss names itself; the rest is known."""
    wanted = [*(each.scores for each in passes), *parameters]
    found = _differentiated(loss, wanted)
    parts = [chain_gradient(each, of, stepped) for each, of in zip(passes, found, strict=False) if of is not None]
    named = {name: value for name, value in zip(stepped, found[len(passes) :], strict=True) if value is not None}
    return functools.reduce(add_gradients, [*parts, *([named] if named or not parts else [])])


def chain_gradient(of: ChainPass, of_scores: Tensor, stepped: Stepped) -> Gradient:
    """The gradient of a pass by hand, from that of its scores."""
    values: dict[str, Tensor] = {}
    factors: dict[str, Factors] = {}
    biases: dict[str, str] = {}
    for link, inputs, deltas in zip(of.links, of.inputs, of.deltas(of_scores), strict=True):
        if link.weight in stepped:
            own = Factors(inputs, deltas)
            rows, weight = len(inputs), link.linear.weight
            if _thin(rows, weight) or _small(rows, weight):
                factors[link.weight] = own
            else:
                values[link.weight] = own.product()
        if link.bias not in stepped:
            continue
        if link.weight in factors:
            biases[link.bias] = link.weight
        else:
            values[link.bias] = deltas.sum(0)
    return FactoredGradient(values, factors, biases) if factors else values


def _thin(rows: int, weight: Tensor) -> bool:
    """Whether the factors of so many rows, twice over, are smaller than the weight."""
    out, into = weight.shape
    return 2 * rows * (out + into) < out * into


def _small(rows: int, weight: Tensor) -> bool:
    """Whether the factors are so small that handling them is a matter of calls alone."""
    return rows * sum(weight.shape) < SMALL


def add_gradients(first: Gradient, second: Gradient, weight: float = 1.0) -> Gradient:
    """first + weight × second, by name; a parameter that one of them lacks has gradient zero there."""
    factors: dict[str, Factors] = {}
    biases: dict[str, str] = {}
    if isinstance(first, FactoredGradient) and isinstance(second, FactoredGradient):
        shared = [name for name in first.factors if name in second.factors]
        factors = {name: stacked(first.factors[name], second.factors[name], weight) for name in shared}
        biases = {name: of for name, of in first.biases.items() if of in factors and second.biases.get(name) == of}
    both = [name for name in first if name in second and name not in factors and name not in biases]
    sums = torch._foreach_add([first[n] for n in both], [second[n] for n in both], alpha=weight) if both else []
    total = dict(zip(both, sums, strict=True))
    total |= {name: first[name] for name in first if name not in second}
    total |= {name: weight * second[name] for name in second if name not in first}
    return FactoredGradient(total, factors, biases) if factors else total


def stacked(first: Factors, second: Factors, weight: float = 1.0) -> Factors:
    deltas = second.deltas if weight == 1 else weight * second.deltas
    return Factors(torch.cat([first.inputs, second.inputs]), torch.cat([first.deltas, deltas]))


# ------------------------------------------------------------------------------------------------- taking a step


def gradient_norm(gradient: Gradient, factored: bool = False) -> float:
    """The norm of the gradient; if factors are to stay ``factored``, a bound of it (‖ΔᵀX‖ ≤ ‖Δ‖ ‖X‖)."""
    if not factored or not isinstance(gradient, FactoredGradient):
        values = [value.coalesce().values() if value.is_sparse else value for value in gradient.values()]
        return math.hypot(*torch.stack(torch._foreach_norm(values)).tolist()) if values else 0.0
    factors, biases = gradient.factors, gradient.biases
    values = [gradient[name] for name in gradient if name not in factors and name not in biases]
    thin = [matrix for pair in factors.values() for matrix in pair]
    norms = torch.stack(torch._foreach_norm([*thin, *values])).tolist()
    of = {
        name: (inputs, deltas, math.sqrt(factors[name].deltas.shape[0]))
        for name, inputs, deltas in zip(factors, norms[: len(thin) : 2], norms[1 : len(thin) : 2], strict=True)
    }
    bounds = [inputs * deltas for inputs, deltas, _ in of.values()]
    sums = [of[weight][1] * of[weight][2] for weight in biases.values()]  # ‖Σ Δ‖ ≤ √n ‖Δ‖
    norm = math.hypot(*bounds, *sums, *norms[len(thin) :])
    return norm if math.isfinite(norm) else gradient_norm(gradient)


def is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step is θ − α∇ℓ and nothing else: no momentum, decay or hooks, nobody who watches `step`."""
    return (
        type(optimizer) is torch.optim.SGD
        and "step" not in vars(optimizer)
        and not optimizer._optimizer_step_pre_hooks
        and not optimizer._optimizer_step_post_hooks
        and not hooks._global_optimizer_pre_hooks
        and not hooks._global_optimizer_post_hooks
        and not any(g["momentum"] or g["weight_decay"] or g["differentiable"] for g in optimizer.param_groups)
    )


def sgd_step(gradient: Gradient, stepped: Stepped) -> None:
    """θ ← θ − α∇ℓ, what plain SGD does. A factored gradient is neither written nor read: θ ← θ − α ΔᵀX at once."""
    factors: Mapping[str, Factors] = {}
    biases: Mapping[str, str] = {}
    if isinstance(gradient, FactoredGradient):
        factors, biases = gradient.factors, gradient.biases
    with torch.no_grad():
        for name, (inputs, deltas) in factors.items():
            parameter, group = stepped[name]
            parameter.addmm_(deltas.t(), inputs, alpha=-rate(group))
        for name in biases:
            parameter, group = stepped[name]
            parameter.sub_(gradient[name], alpha=rate(group))
        others = {name: stepped[name] for name in gradient if name not in factors and name not in biases}
        for alpha, names in by_rate(others).items():
            parameters = [stepped[name][0] for name in names]
            torch._foreach_add_(parameters, [gradient[name] for name in names], alpha=-alpha)


# --------------------------------------------------------------------------------------------- linear layers at work


class _Noted(torch.autograd.Function):
    """x Wᵀ + b, which leaves Δ with its `Use` where the gradient of W is wanted as factors; else as ever."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, use: Use) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.use = use
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        use: Use = ctx.use
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        if use.wanted and not torch.is_grad_enabled():  # with gradients on, somebody differentiates this gradient
            use.deltas, of_weight = delta, False
        return (
            delta @ weight if of_x else None,
            delta.t() @ x if of_weight else None,
            delta.sum(0) if of_bias else None,
            None,
        )


def _noting(linear: nn.Linear, uses: list[Use], moving: Set[int]) -> Callable[[Tensor], Tensor]:
    """``moving`` are the places of buffers, which a later pass may move: of these a copy is noted."""

    def forward(input: Tensor) -> Tensor:
        weight, bias = linear.weight, linear.bias
        fits = input.ndim == 2 and input.dtype == weight.dtype and _thin(len(input), weight)
        watched = not weight.requires_grad or weight._backward_hooks or linear._is_full_backward_hook is False
        if not fits or watched or not torch.is_grad_enabled() or _reinterpreted(input):
            return F.linear(input, weight, bias)
        inputs = input.detach()
        use = Use(weight, inputs.clone() if inputs.untyped_storage().data_ptr() in moving else inputs)
        uses.append(use)
        output: Tensor = _Noted.apply(input, weight, bias, use)  # type: ignore[no-untyped-call]
        return output

    return forward


def _reinterpreted(x: Tensor) -> bool:
    """Whether torch is at something here that makes more of an operation than its result: autocast, a transform, a
    compilation."""
    transformed = torch._C._are_functorch_transforms_active() or torch.compiler.is_compiling()
    return transformed or torch.is_autocast_enabled(x.device.type)


class ReplacedForwards:
    """Inside the block these modules compute by the functions given."""

    def __init__(self, forwards: Mapping[nn.Module, Callable[..., Tensor]]) -> None:
        self._forwards = forwards

    def __enter__(self) -> None:
        for module, forward in self._forwards.items():
            vars(module)["forward"] = forward

    def __exit__(self, *exception: object) -> None:
        for module in self._forwards:
            vars(module).pop("forward", None)  # another thread that predicts may have been here
