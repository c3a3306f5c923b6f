"""Diagnosis: which stored samples a step on a batch would interfere with, and by how much."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .batch import Tree, tree_concatenate, tree_map
from .checks import check_choice, check_limit
from .engine import Layers, Passed, Plain
from .errors import InvalidInput
from .memory import Memory
from .network import VirtualStep
from .random import numpy_generator

DIAGNOSED_AT_ONCE = 1000
Diagnosing = tuple[Plain, Passed, VirtualStep, Layers]
"""The engine for stored samples, which leaves no statistics; the virtual pass; which step, and of which layers."""


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """Stored samples by interference, highest first: the loss of each now, after a step on the batch, the difference.

    Args:
        incoming_loss: The mean loss of the batch.
        slots: Where the samples are stored.
        y: Their targets.
        task: Their tasks.
        before: Their losses now.
        after: Their losses after a step on the batch.
        interference: MI-1 of the paper, ℓ(f_θᵛ(x), y) − ℓ(f_θ(x), y): positive where the step would do harm.
    """

    incoming_loss: float
    slots: Tensor
    y: Tree
    task: Tensor
    before: Tensor
    after: Tensor
    interference: Tensor

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.slots)

    def __repr__(self) -> str:
        """Name counts and the highest interference."""
        harmed = f"{int((self.interference > 0).sum())} harmed, by up to {self.interference[:1].sum():.4g}"
        return f"Diagnosis(loss {self.incoming_loss:.4g}, {len(self)} stored samples, {harmed})"

    def by(self, name: Literal["class", "task"]) -> dict[int, tuple[int, float]]:
        """Return the number of samples and their mean interference, for each class or task.

        Raises:
            InvalidInput: If ``name`` is neither, or the targets are not class labels.
        """
        check_choice(("class", "task"), name=name)
        groups = self.y if name == "class" else self.task
        if not isinstance(groups, Tensor) or groups.ndim != 1 or groups.is_floating_point():
            raise InvalidInput("these targets are no class labels; group by 'task', or use y and interference yourself")
        found = {int(group): self.interference[groups == group] for group in torch.unique(groups)}
        return {group: (len(scores), float(scores.mean())) for group, scores in found.items()}


def diagnosed_slots(memory: Memory, exclude_task: Tensor | int | None, limit: int | None) -> Tensor:
    """Return the slots to diagnose: all, or a fixed draw of ``limit``, the same every time.

    Raises:
        InvalidInput: If there are none, or ``limit`` is not a positive number.
    """
    check_limit(limit=limit)
    if not memory.eligible(exclude_task):
        raise InvalidInput("there are no stored samples (of other tasks) to interfere with yet")
    slots = memory.slots(exclude_task=exclude_task)
    if limit is not None and limit < len(slots):
        drawn = numpy_generator(0, "diagnose").choice(len(slots), limit, replace=False)
        slots = slots[torch.from_numpy(np.sort(drawn))]
    return slots


def diagnosed(
    memory: Memory, slots: Tensor, plain: Plain, passed: Passed, virtual_step: VirtualStep, layers: Layers
) -> Diagnosis:
    """Return the diagnosis of the samples at these slots; the further arguments are those of `Diagnosing`."""
    # Parts of nearly the same size: none is a lone sample, which batch-norm cannot take.
    parts = [memory.get(some) for some in torch.tensor_split(slots, -(-len(slots) // DIAGNOSED_AT_ONCE))]
    losses = [plain.losses(part, passed.gradient, virtual_step=virtual_step, layers=layers) for part in parts]
    before, after = (torch.cat([pair[i] for pair in losses]).cpu() for i in range(2))
    interference, order = (after - before).sort(descending=True, stable=True)
    labels, tasks = tree_concatenate([(part.y, torch.as_tensor(part.task)) for part in parts])
    found = (slots, labels, tasks, before, after)
    slots, labels, tasks, before, after = tree_map(lambda values: values[order], found)
    return Diagnosis(passed.loss, slots, labels, tasks, before, after, interference)
