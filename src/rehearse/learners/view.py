"""A network as a search sees it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from torch import Tensor, nn

from ..latent import Elbo
from ..losses import in_full
from ..parts import Substitutes


class View:
    """A network as it is, or with other tensors in place of its own; counts the rows that pass through it."""

    def __init__(self, module: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> None:
        self._module = module
        self._substituted = nullcontext() if tensors is None else Substitutes(module, tensors)
        self.rows = 0

    def classify(self, x: Tensor) -> Tensor:
        """log softmax of the scores."""
        scores: Tensor = self._ask("forward", x)
        return in_full(scores).log_softmax(1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self._ask("encode", x)
        return mean, log_variance

    def decode(self, z: Tensor) -> Tensor:
        x: Tensor = self._ask("decode", z)
        return x

    def loss(self, x: Tensor) -> Elbo:
        return Elbo(*self._ask("loss", x))

    def _ask(self, method: str, rows: Tensor) -> Any:
        self.rows += len(rows)
        with self._substituted:
            return self._module(rows) if method == "forward" else getattr(self._module, method)(rows)
