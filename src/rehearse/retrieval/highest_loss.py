"""Retrieval by the present loss."""

from __future__ import annotations

from typing import Any

from ..batch import Batch, highest
from ..checks import check_limit
from ..described import Described
from ..engine import Engine
from ..memory import Memory
from .base import Retrieved


class HighestLoss(Described):
    """Retrieve the samples whose loss is highest now: a control that looks at no step ahead.

    Of C candidates drawn at random, those with the highest s(x) = ℓ(f_θ(x), y), which is reported as interference.
    """

    needs_gradient = False

    def __init__(self, candidates: int | None = 50) -> None:
        """Set C, the number of ``candidates``, or None for the whole memory."""
        check_limit(candidates=candidates)
        self.candidates = candidates

    def __call__(self, memory: Memory, incoming: Batch, gradient: Any, engine: Engine, budget: int) -> Retrieved:
        """Return the candidates with the highest loss; ties go to the lower slot."""
        candidates = memory.sample(self.candidates, exclude_task=incoming.task, ordered=True)
        return Retrieved(*highest(candidates, engine.losses(candidates)[0], budget))
