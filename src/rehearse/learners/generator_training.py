"""How the generator is trained: on what arrives and on what it imagined before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..chain import listened_to, listened_to_everywhere, offers
from ..errors import InvalidInput, RehearseError
from ..gradients import Gradient, gradient_of
from ..latent import Elbo
from ..parts import Stepped, stepped_parameters
from .step import mean_loss, step_along
from .view import View


class PassByHand(Protocol):
    """A pass of rows through a generator whose gradient is known without autograd; it moves nothing."""

    def losses(self) -> Elbo:
        """−ELBO of each row in its two parts."""

    def gradient(self, weights: Tensor, beta: float) -> dict[str, Tensor]:
        """∇ Σᵢ weightᵢ (reconstructionᵢ + β KLᵢ) by parameter name."""


ByHand = Callable[[Tensor], PassByHand]


@dataclass(frozen=True)
class GeneratorTraining:
    """φ, γ ← SGD(B_n ∪ B_G, α): steps down ∇ Σᵢ weightᵢ (reconstructionᵢ + β KLᵢ).

    A generator whose class offers `by_hand` is differentiated by hand, unless somebody listens to it; what is
    drawn and what comes out are the same but for rounding.
    """

    generator: nn.Module
    optimizer: torch.optim.Optimizer
    clip: float | None

    def step(self, rows: Tensor, weights: Tensor, beta: float, updates: int) -> Gradient:
        """So many steps on the same rows; gives the gradient of the last one."""
        stepped = stepped_parameters(self.generator, self.optimizer)
        by_hand = self._by_hand(rows, stepped)
        for update in range(updates):
            gradient = self._gradient(rows, weights, beta, stepped, by_hand, checked=update in (0, updates - 1))
            step_along(gradient, self.generator, self.optimizer, self.clip, stepped)
        return gradient

    def gradient(self, rows: Tensor, beta: float, buffers: Mapping[str, Tensor] | None = None) -> Gradient:
        """That of the mean over the rows; with ``buffers``, those are used and moved instead of its own."""
        weights = equal_weights(rows)
        stepped = stepped_parameters(self.generator, self.optimizer)
        return self._gradient(rows, weights, beta, stepped, self._by_hand(rows, stepped), buffers=buffers)

    def _gradient(
        self,
        rows: Tensor,
        weights: Tensor,
        beta: float,
        stepped: Stepped,
        by_hand: ByHand | None,
        *,
        checked: bool = True,
        buffers: Mapping[str, Tensor] | None = None,
    ) -> Gradient:
        try:
            passed = None if by_hand is None else by_hand(rows)
            losses = View(self.generator, buffers).loss(rows) if passed is None else None
        except RehearseError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as problem:
            raise InvalidInput(f"the generator cannot take this batch: {problem}") from problem
        if passed is None:
            assert losses is not None
            return gradient_of(_checked(weights * losses.total(beta)), stepped)
        if checked:  # a gradient that is not finite is refused at every step; all are taken back together
            _checked(weights * passed.losses().total(beta))
        gradient = passed.gradient(weights, beta)
        return {name: gradient[name] for name in stepped}

    def _by_hand(self, rows: Tensor, stepped: Stepped) -> ByHand | None:
        """What passes these rows by hand; asked once for steps that change nothing but parameters' values."""
        generator: Any = self.generator
        if not offers(generator, "by_hand"):
            return None
        if listened_to(generator) or listened_to_everywhere() or torch.is_autocast_enabled(rows.device.type):
            return None
        if rows.dtype not in (torch.float32, torch.float64):
            return None
        if any(parameter._backward_hooks or parameter.dtype != rows.dtype for parameter, _ in stepped.values()):
            return None
        by_hand: ByHand | None = generator.by_hand()
        return by_hand


def equal_weights(rows: Tensor) -> Tensor:
    """1/n for each of n rows, in no less than single precision."""
    dtype = torch.promote_types(rows.dtype, torch.float32)
    return torch.full((len(rows),), 1 / len(rows), dtype=dtype, device=rows.device)


def _checked(weighted: Tensor) -> Tensor:
    """The sum of weighted losses, or a refusal if it is no number."""
    return mean_loss(weighted.sum())
