"""No replay at all: the lower bound on a stream of tasks, and the upper bounds on a shuffled one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..batch import Batch, Step, Tree
from ..network import Network
from .steps import StepLearner, Updates


class Finetune(StepLearner):
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
        """Build a learner around a model; see `Replay` for the arguments."""
        network = Network(model, optimizer, prepare=prepare, precision=precision, clip=clip, random=seed)
        super().__init__(network, loss, updates=updates)

    def _steps(self, incoming: Batch) -> Updates:
        engine = self.plain.fastest(incoming.x)
        for _ in range(self.updates):
            loss, gradient, logits, *_ = engine.gradient(incoming, replayed=False)
            yield Step(loss), logits, engine.step(gradient)
