"""Averaged gradient episodic memory: no step that raises the average loss of the past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..batch import Tree
from ..gradients import Gradient, add_gradients
from ..memory import TaskRingMemory
from .base import Learner
from .checks import check_budget, check_positive, needs_two_rows
from .gem import check_rings
from .step import Step, mean_loss


class AGEM(Learner):
    """A-GEM (Chaudhry et al. 2019, "Efficient Lifelong Learning with A-GEM").

        g   ← ∇ mean ℓ(B_n)                    the incoming batch, of task t
        r   ← ∇ mean ℓ(B_M)                    ``budget`` rows drawn from the memories of all other tasks
        if ⟨g, r⟩ < 0:
            g ← g − (⟨g, r⟩ / ⟨r, r⟩) r        now ⟨g, r⟩ = 0
        θ   ← SGD(g)
        M_t ← the last rows of task t

    Differs from the source because the memories are GEM's rings instead of a random choice of each task's rows: the
    two methods then hold the same rows and differ in the projection alone. As in `GEM`, all outputs take part in the
    loss, and every pass is in train mode.
    """

    task_aware = True
    memory: TaskRingMemory

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        memory: TaskRingMemory,
        *,
        budget: int = 256,
        updates: int = 1,
        loss: Any = None,
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(model, optimizer, loss=loss, prepare=prepare, precision=precision, clip=clip, seed=seed)
        check_rings(memory)
        check_positive(updates=updates)
        check_budget(budget, model)
        self.memory, self.budget, self.updates = memory, budget, updates

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None) -> Step:
        """Learn from the incoming batch without raising the average loss of the past, then remember it."""
        incoming = self._accept(x, y, task, id)
        columns = self.memory.check(incoming)
        self.memory.share(incoming)
        recalled, recalled_loss = None, None
        with self.memory.transaction(), self._transaction(parameters=self.updates > 1):
            for _ in range(self.updates):
                loss = mean_loss(self._losses(incoming, recalled=False))
                gradient = self._gradient(loss)  # g
                held = self.memory.eligible(incoming.task)
                if held > 1 or (held and not needs_two_rows(self.model)):
                    recalled = self.memory.sample(self.budget, exclude_task=incoming.task)  # B_M
                    past_loss = mean_loss(self._losses(recalled, recalled=True))
                    recalled_loss = past_loss.item()
                    gradient = project(gradient, self._gradient(past_loss))
                self._apply(gradient)  # θ ← SGD(g̃)
        self.memory.keep(incoming, columns)
        self._settle(incoming)
        return Step(loss.item(), recalled_loss, recalled)

    def _own_state(self) -> dict[str, Any]:
        return {"memory": self.memory.state_dict()}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state["memory"])


def project(gradient: Gradient, reference: Gradient) -> Gradient:
    """g − (⟨g, r⟩ / ⟨r, r⟩) r where ⟨g, r⟩ < 0, and g itself elsewhere."""
    along = _inner(gradient, reference)
    if not along < 0:
        return gradient
    return add_gradients(gradient, reference, -along / _inner(reference, reference))


def _inner(first: Gradient, second: Gradient) -> float:
    products = [(first[name].double() * second[name].double()).sum() for name in first if name in second]
    return torch.stack(products).sum().item() if products else 0.0
