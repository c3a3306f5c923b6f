"""Several steps of plain SGD on the same rows, without multiplying out the first layer's weight at each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from ..chain import listened_to, listened_to_everywhere, offers
from ..errors import InvalidInput, NotFinite
from ..gradients import FactoredGradient, Factors, Gradient, is_plain_sgd
from ..parts import stepped_parameters
from .step import step_along


class _Affine(Protocol):
    weight: Tensor
    bias: Tensor


@runtime_checkable
class LinearFirst(Protocol):
    """A classifier whose inputs meet a linear layer first: its scores are rest(x Wᵀ + b), x flattened, and ``rest``
    does not use W.

    Its class defines ``first``, ``rest`` and ``forward`` together, and means the same by both ways.
    """

    @property
    def first(self) -> _Affine:
        """The layer with W and b."""

    def rest(self, activations: Tensor) -> Tensor:
        """From the layer's outputs to the scores."""


class RestByHand(Protocol):
    """A pass through what follows the first layer, whose gradient is known without autograd."""

    scores: Tensor

    def gradient(self, of_scores: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Δ of what came in, and the gradient of the parameters by name."""


class SameRows:
    """Steps on rows X that stay: what the first layer makes of them is moved instead of its weight.

        W ← W − α ΔᵀX   moves   A = X Wᵀ   by   −α (X Xᵀ) Δ,   with Δ the gradient of A

    For n rows that is n² · m operations in place of 2 n · d · m, with d inputs and m outputs. The weight itself is
    made once, by `finish`: W ← W − α (Σ Δ)ᵀX. Until then it is that of the beginning.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor) -> None:
        assert isinstance(model, LinearFirst)
        self._model, self._optimizer, self._split = model, optimizer, model
        self._stepped = stepped_parameters(model, optimizer)
        self._weight = model.first.weight
        self._name = next(name for name, (parameter, _) in self._stepped.items() if parameter is self._weight)
        self._rate = float(self._stepped[self._name][1]["lr"])
        self._rows = rows.flatten(1)
        self._products = self._rows @ self._rows.t()
        self._outputs = self._rows @ self._weight.detach().t()
        self._sum = torch.zeros_like(self._outputs)
        self._rest = self._rest_by_hand()

    def forward(self) -> Tensor:
        """The scores of the rows."""
        self._leaf = self._outputs.detach().requires_grad_()
        return self._split.rest(self._leaf + self._split.first.bias)

    def pass_by_hand(self) -> RestByHand | None:
        """The same without autograd, where the model's class offers that for what follows the first layer."""
        return None if self._rest is None else self._rest(self._outputs + self._split.first.bias.detach())

    def _rest_by_hand(self) -> Callable[[Tensor], RestByHand] | None:
        model: Any = self._model
        if not offers(model, "rest_by_hand"):
            return None
        if any(parameter._backward_hooks for parameter, _ in self._stepped.values()):
            return None
        rest: Callable[[Tensor], RestByHand] | None = model.rest_by_hand()
        return rest

    def step_by_hand(self, passed: RestByHand, of_scores: Tensor) -> Gradient:
        """One step, from the gradient of the scores of `pass_by_hand`."""
        delta, gradient = passed.gradient(of_scores)
        bias = [name for name, (parameter, _) in self._stepped.items() if parameter is self._split.first.bias]
        gradient |= {name: delta.sum(0) for name in bias}
        return self._take(delta, {name: gradient[name] for name in self._stepped if name in gradient})

    def step(self, loss: Tensor) -> Gradient:
        """One step down the gradient of a loss of `forward`'s scores."""
        others = {name: parameter for name, (parameter, _) in self._stepped.items() if name != self._name}
        wanted = [self._leaf, self._weight, *others.values()]
        delta, again, *values = torch.autograd.grad(loss, wanted, allow_unused=True)
        if again is not None:
            raise InvalidInput(
                f"{type(self._model).__name__}.rest uses the weight of `first` again, so the model does not split "
                "there; give `first` or `rest` another name"
            )
        return self._take(delta, {name: value for name, value in zip(others, values, strict=True) if value is not None})

    def _take(self, delta: Tensor, gradient: dict[str, Tensor]) -> Gradient:
        if not bool(delta.sum().isfinite()):
            raise NotFinite("the gradient is not finite: the learning rate may be too high for this batch")
        step_along(gradient, self._model, self._optimizer, stepped=self._stepped)
        self._outputs.addmm_(self._products, delta, alpha=-self._rate)
        self._sum += delta
        return FactoredGradient(gradient, {self._name: Factors(self._rows, delta)})

    @torch.no_grad()
    def finish(self) -> None:
        """The weight as all these steps make it."""
        self._weight.addmm_(self._sum.t(), self._rows, alpha=-self._rate)
        self._sum.zero_()


def can_stay(model: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor) -> bool:
    """Whether `SameRows` is for these: a first linear layer of these inputs, trained by plain SGD, with nobody who
    listens to its passes or its gradient."""
    if not _says_how_it_splits(type(model)) or not is_plain_sgd(optimizer):
        return False
    if listened_to_everywhere() or any(listened_to(module) for module in model.modules()):
        return False
    assert isinstance(model, LinearFirst)
    if isinstance(model.first, nn.Linear) and type(model.first) is not nn.Linear:
        return False  # it may make something else of its inputs
    if torch.is_autocast_enabled(rows.device.type):
        return False
    weight, bias = model.first.weight, model.first.bias
    groups = [group for group in optimizer.param_groups if any(weight is held for held in group["params"])]
    plain = len(groups) == 1 and not groups[0]["maximize"] and not weight._backward_hooks and isinstance(bias, Tensor)
    fits = rows.ndim > 1 and rows.flatten(1).shape[1] == weight.shape[1] and rows.dtype == weight.dtype
    return plain and fits and weight.requires_grad and len(rows) < weight.shape[1]


def _says_how_it_splits(kind: type[nn.Module]) -> bool:
    """Whether ``first`` and ``rest`` were written together with ``forward``: a subclass with another forward may not
    mean the same, and layers that happen to bear these names do not say anything."""
    written = [next((one for one in kind.__mro__ if name in vars(one)), None) for name in ("forward", "first", "rest")]
    return written[0] is not None and written[0] is written[1] is written[2]
