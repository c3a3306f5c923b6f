"""Retrieval at random."""

from __future__ import annotations

from typing import Any

import torch

from ..batch import Batch
from ..checks import check_limit
from ..described import Described
from ..engine import Engine
from ..memory import Memory
from .base import Retrieved


class Uniform(Described):
    """Retrieve at random: experience replay (ER).

    With ``candidates``, that many samples pass through the network as in `MostInterfered`, and the budget is taken
    from them at random: a control that has everything of interfered retrieval but the choice.
    """

    needs_gradient = False

    def __init__(self, candidates: int | None = None) -> None:
        """Set how many samples pass through the network; none by default."""
        check_limit(candidates=candidates)
        self.candidates = candidates

    def __call__(self, memory: Memory, incoming: Batch, gradient: Any, engine: Engine, budget: int) -> Retrieved:
        """Return a random sample of the memory."""
        if self.candidates is None:
            return Retrieved(memory.sample(budget, exclude_task=incoming.task))
        candidates = memory.sample(max(self.candidates, budget), exclude_task=incoming.task)
        engine.losses(candidates)
        return Retrieved(candidates.take(torch.arange(min(budget, len(candidates)))))
