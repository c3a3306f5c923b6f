"""Averaged gradient episodic memory: no step that raises the average loss of the past."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..batch import Batch, Step, Tree
from ..checks import check_budget, check_memory, needs_two_samples
from ..memory import TaskRingMemory
from ..network import NamedGradient, Network
from .steps import StepLearner, Updates


class AGEM(StepLearner):
    """A-GEM (Chaudhry et al. 2019, "Efficient Lifelong Learning with A-GEM").

        g   ← ∇ mean ℓ(B_n)                    the incoming batch, of task t
        r   ← ∇ mean ℓ(B_M)                    ``budget`` samples drawn from the stored ones of all other tasks
        if ⟨g, r⟩ < 0:
            g ← g − (⟨g, r⟩ / ⟨r, r⟩) r        now ⟨g, r⟩ = 0
        θ   ← SGD(g)
        M_t ← the last samples of task t

    Differs from the source because the memory is GEM's rings instead of a random choice of each task's samples: the
    two methods then hold the same samples and differ in the projection alone. As in `GEM`, all outputs take part in
    the loss, and every pass is in train mode.
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
        """Build a learner around a model; see `Replay` for the arguments."""
        network = Network(model, optimizer, prepare=prepare, precision=precision, clip=clip, random=seed)
        check_memory(memory, TaskRingMemory)
        super().__init__(network, loss, memory=memory, updates=updates)
        check_budget(budget, model)
        self.budget = budget

    def _steps(self, incoming: Batch) -> Updates:
        memory, replayed, replayed_loss = self.memory, None, None
        for _ in range(self.updates):
            loss, gradient, logits, *_ = self.plain.gradient(incoming, replayed=False)  # g
            if memory.eligible(incoming.task) > needs_two_samples(self.model):
                replayed = memory.sample(self.budget, exclude_task=incoming.task)  # B_M
                replayed_loss, reference, *_ = self.plain.gradient(replayed, replayed=True)  # r
                gradient = project(gradient, reference)
            yield Step(loss, replayed_loss, replayed), logits, self.network.step(gradient)  # θ ← SGD(g)


def project(gradient: NamedGradient, reference: NamedGradient) -> NamedGradient:
    """Return g − (⟨g, r⟩ / ⟨r, r⟩) r if ⟨g, r⟩ < 0, and g itself otherwise."""
    along = _inner(gradient, reference)
    if not along < 0:
        return gradient
    return gradient.plus(reference, -along / _inner(reference, reference))


def _inner(first: NamedGradient, second: NamedGradient) -> float:
    products = [(first[name].double() * second[name].double()).sum() for name in first if name in second]
    return torch.stack(products).sum().item() if products else 0.0
