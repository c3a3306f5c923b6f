"""No replay at all: the lower bound on a stream of tasks, and the upper bounds on a shuffled one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..batch import Tree
from .base import Learner
from .checks import check_positive
from .step import Step


class Finetune(Learner):
    """A step on every incoming batch, ``updates`` times: θ ← θ − α ∇ mean ℓ(B_n).

    On a stream of tasks this forgets. On `stream.iid(epochs=1)` it is the paper's "iid online", on
    `stream.iid(epochs=5)` "iid offline".
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        updates: int = 1,
        loss: Any = None,
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, optimizer, loss=loss, prepare=prepare, precision=precision, clip=clip, seed=seed)
        check_positive(updates=updates)
        self.updates = updates

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None) -> Step:
        incoming = self._accept(x, y, task, id)
        with self._transaction(parameters=self.updates > 1):
            for _ in range(self.updates):
                loss, gradient, _ = self._passed(incoming, recalled=False)
                self._apply(gradient)
        self._settle(incoming)
        return Step(loss)

    def _own_state(self) -> dict[str, Any]:
        return {}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        pass
