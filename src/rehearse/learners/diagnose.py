"""Which memories a batch interferes with, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch, Tree, checked_batch
from ..compute import numpy_generator, training_mode
from ..errors import InvalidInput
from ..gradients import Gradient
from ..lookahead import Lookahead
from ..memory import Memory

if TYPE_CHECKING:
    from .base import Learner

ROWS = 1000  # memories scored at once


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Memories by interference, highest first: the loss of each now, after a step on the batch, and the difference.

    ``interference`` is MI-1 of the paper, ℓ(f_θᵛ(x), y) − ℓ(f_θ(x), y): positive where the step would do harm.
    """

    incoming_loss: float
    slots: Tensor
    y: Tensor
    task: Tensor
    before: Tensor
    after: Tensor
    interference: Tensor

    def __len__(self) -> int:
        return len(self.slots)

    def by(self, name: Literal["class", "task"]) -> dict[int, tuple[int, float]]:
        """For each class or task how many memories were looked at, and their mean interference."""
        groups = self.y if name == "class" else self.task
        if groups.ndim != 1 or groups.is_floating_point():
            raise InvalidInput("these targets are no class labels; group by 'task', or use y and interference yourself")
        return {
            int(group): (int((groups == group).sum()), float(self.interference[groups == group].mean()))
            for group in torch.unique(groups)
        }


def diagnose(learner: Learner, x: Tree, y: Any, task: Any = None, limit: int | None = None) -> Diagnosis:
    """Foresee a step on this batch and tell what it would do to the memories. Changes nothing.

    With a task, memories of that task are left out, as in replay. ``limit`` looks at that many memories instead of
    all: a fixed draw, the same every time.
    """
    memory, batch = learner.memory, checked_batch(x, y, task)
    if memory is None:
        raise InvalidInput(f"{type(learner).__name__} keeps no memory; there is nothing to interfere with")
    slots = _slots(memory, batch, limit)
    passed = learner._rows_passed
    try:
        gradient, incoming_loss = _gradient(learner, batch)
    finally:
        learner._rows_passed = passed
    lookahead = Lookahead(
        learner.model, learner.optimizer, learner.loss, prepare=learner.prepare, computation=learner.computation
    )
    parts, losses = [], []
    for some in torch.split(slots, ROWS):
        rows = memory.get(some)
        parts.append(rows)
        losses.append(lookahead.losses(rows, gradient))
    before, after = (torch.cat([pair[i] for pair in losses]).cpu() for i in range(2))
    interference, order = (after - before).sort(descending=True, stable=True)
    labels, tasks = torch.cat([part.y for part in parts]), torch.cat([torch.as_tensor(part.task) for part in parts])
    return Diagnosis(
        incoming_loss, slots[order], labels[order], tasks[order], before[order], after[order], interference
    )


def _slots(memory: Memory, batch: Batch, limit: int | None) -> Tensor:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidInput(f"limit is {limit!r}; it must be a positive number of memories, or None for all")
    if not memory.eligible(batch.task):
        raise InvalidInput("there are no memories (of other tasks) to interfere with yet")
    slots = memory.slots(exclude_task=batch.task)
    if limit is not None and limit < len(slots):
        drawn = numpy_generator(0, "diagnose").choice(len(slots), limit, replace=False)
        slots = slots[torch.from_numpy(np.sort(drawn))]
    return slots


def _gradient(learner: Learner, batch: Batch) -> tuple[Gradient, float]:
    """∇ℓ(B_n) as a step would have it, with copies of the buffers and borrowed random numbers."""
    buffers = {name: buffer.clone() for name, buffer in learner.model.named_buffers()}
    with torch.enable_grad(), training_mode(learner.model), learner.random.borrowed():
        loss = learner._losses(batch, False, learner._forward(batch.x, buffers)).mean()
        if not bool(loss.isfinite()):
            raise InvalidInput(f"the loss of this batch is {loss.item()}; a step on it would be refused")
        return learner._gradient(loss), loss.item()
