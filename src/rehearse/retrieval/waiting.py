"""Samples that were scored in one step and are replayed in later ones; the memory knows which."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ..batch import Batch, highest
from ..memory import Memory
from .base import Retrieved

WAITING: Final = "waiting"
"""A fact of stored samples: their interference, while they wait."""


def wait(memory: Memory, samples: Batch, interference: Tensor) -> None:
    """Let samples wait in place of all that did."""
    assert samples.slots is not None
    slots = memory.slots()
    memory.fact(WAITING, slots, fill=-torch.inf)
    memory.note(WAITING, slots, -torch.inf)
    memory.note(WAITING, samples.slots, interference)


def waiting(memory: Memory, task: int | Tensor | None, budget: int) -> bool:
    """Return whether samples outside a task wait; a lone one, which may have no batch statistics, does not count."""
    scores = memory.fact(WAITING, memory.slots(exclude_task=task), fill=-torch.inf)
    return int((scores > -torch.inf).sum()) >= min(budget, 2)


def next_waiting(memory: Memory, task: int | Tensor | None, budget: int) -> Retrieved:
    """Return the samples with the highest interference that wait; they wait no longer."""
    slots = memory.slots(exclude_task=task)
    scores = memory.fact(WAITING, slots, fill=-torch.inf)
    left = scores > -torch.inf
    replayed, interference = highest(memory.get(slots[left]), scores[left], budget)
    assert replayed.slots is not None
    memory.note(WAITING, replayed.slots, -torch.inf)
    return Retrieved(replayed, interference)
