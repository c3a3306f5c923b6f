"""No replay at all: the lower bound on a stream of tasks, and the upper bounds on a shuffled one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import nn

from ..batch import Step, Tree, checked_batch
from ..checks import check_positive
from ..losses import as_loss
from ..memory.ids import with_ids
from ..network import Network
from ..random import RandomState
from ..undo import all_or_nothing, run
from .base import Learner


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
        """Build a learner around a model; see `Replay` for the arguments."""
        random = RandomState(seed)
        network = Network(model, optimizer, prepare=prepare, precision=precision, clip=clip, random=random)
        super().__init__(network, as_loss(loss))
        check_positive(updates=updates)
        self.updates = updates

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None) -> Step:
        """Learn from an incoming batch; see `Learner.observe`."""
        incoming, network = with_ids(checked_batch(x, y, task), id), self.network
        with self.lock, all_or_nothing(network) as commit:
            engine = self.plain.fastest(incoming.x)
            with network.training():
                for remaining in reversed(range(self.updates)):
                    loss, gradient, *_ = engine.gradient(incoming, replayed=False)
                    if remaining:
                        network.save_parameters()
                        run(engine.step(gradient))
                step = engine.step(gradient)
            progress = self.progress.after(incoming, self.updates)
            commit(chain(step, map(setattr, [self], ["progress"], [progress])))
        return Step(loss)
