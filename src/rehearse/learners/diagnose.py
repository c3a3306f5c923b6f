"""Which memories a batch interferes with, and by how much."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch, Tree, checked_batch
from ..compute import numpy_generator, training_mode
from ..errors import InvalidInput, RehearseError
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
        if name not in ("class", "task"):
            raise InvalidInput(f"memories are grouped by 'class' or 'task', not by {name!r}")
        groups = self.y if name == "class" else self.task
        if groups.ndim != 1 or groups.is_floating_point():
            raise InvalidInput("these targets are no class labels; group by 'task', or use y and interference yourself")
        return {
            int(group): (int((groups == group).sum()), float(self.interference[groups == group].mean()))
            for group in torch.unique(groups)
        }


def diagnose(learner: Learner, x: Tree, y: Any, task: Any = None, limit: int | None = None) -> Diagnosis:
    """Foresee a step on this batch and tell what it would do to the memories. Changes nothing.

    The step is the one that the learner itself foresees (its ``virtual_step`` and ``layers``); a learner that looks
    at no step ahead is asked for the step of its optimiser, clipped as it clips. With a task, memories of that task
    are left out where replay leaves them out. ``limit`` looks at that many memories instead of all: a fixed draw, the
    same every time.
    """
    memory, batch = learner.memory, checked_batch(x, y, task)
    if memory is None:
        raise InvalidInput(f"{type(learner).__name__} keeps no memory; there is nothing to interfere with")
    slots = _slots(memory, batch.task if learner.exclude_current_task else None, limit)
    with _unnoticed(learner, batch) as lookahead:
        gradient, incoming_loss = _gradient(learner, batch, lookahead)
        # Parts of nearly the same size: none is a lone row, which batch-norm cannot take.
        parts = [memory.get(some) for some in torch.tensor_split(slots, -(-len(slots) // ROWS))]
        losses = [_losses(lookahead, rows, gradient) for rows in parts]
    before, after = (torch.cat([pair[i] for pair in losses]).cpu() for i in range(2))
    interference, order = (after - before).sort(descending=True, stable=True)
    labels, tasks = torch.cat([part.y for part in parts]), torch.cat([torch.as_tensor(part.task) for part in parts])
    return Diagnosis(
        incoming_loss, slots[order], labels[order], tasks[order], before[order], after[order], interference
    )


def optimizer_foresight(learner: Learner) -> Lookahead:
    """What foresees the step of the learner's optimiser, clipped as it clips."""
    return Lookahead(
        learner.model,
        learner.optimizer,
        learner.loss,
        virtual_step="optimizer",
        prepare=learner.prepare,
        computation=learner.computation,
        clip=learner.clip,
    )


@contextlib.contextmanager
def _unnoticed(learner: Learner, batch: Batch) -> Iterator[Lookahead]:
    """The learner's look-ahead, with borrowed random numbers; what it notes, and how much the learner says it costs, is
    afterwards what it was."""
    lookahead, passed = learner._foresight(batch), learner._rows_passed
    notes = lookahead.rows_passed, lookahead.statistics
    try:
        with learner.random.borrowed():
            yield lookahead
    finally:
        learner._rows_passed = passed
        lookahead.rows_passed, lookahead.statistics = notes


def _slots(memory: Memory, task: Tensor | int | None, limit: int | None) -> Tensor:
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidInput(f"limit is {limit!r}; it must be a positive number of memories, or None for all")
    if not memory.eligible(task):
        raise InvalidInput("there are no memories (of other tasks) to interfere with yet")
    slots = memory.slots(exclude_task=task)
    if limit is not None and limit < len(slots):
        drawn = numpy_generator(0, "diagnose").choice(len(slots), limit, replace=False)
        slots = slots[torch.from_numpy(np.sort(drawn))]
    return slots


def _gradient(learner: Learner, batch: Batch, lookahead: Lookahead) -> tuple[Gradient, float]:
    """∇ℓ(B_n) as a step would have it, with copies of the buffers."""
    buffers = {name: buffer.clone() for name, buffer in learner.model.named_buffers()}
    with torch.enable_grad(), training_mode(learner.model):
        scores = learner._forward(batch.x, buffers)
        loss = lookahead.loss(scores, batch.to(scores.device), False).mean()
        if not bool(loss.isfinite()):
            raise InvalidInput(f"the loss of this batch is {loss.item()}; a step on it would be refused")
        return learner._gradient(loss), loss.item()


def _losses(lookahead: Lookahead, rows: Batch, gradient: Gradient) -> tuple[Tensor, Tensor]:
    try:
        return lookahead.losses(rows, gradient)
    except RehearseError:
        raise
    except (RuntimeError, ValueError) as problem:
        raise InvalidInput(f"the memories cannot be scored: {problem}") from problem
