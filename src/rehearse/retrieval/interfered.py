"""Maximally interfered retrieval (MIR)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from ..batch import Batch, highest
from ..checks import check_limit, check_literals, check_positive
from ..described import Described
from ..engine import Engine, Layers
from ..memory import Memory
from ..network import VirtualStep
from .base import Retrieved
from .waiting import next_waiting, wait, waiting

BEST_LOSS: Final = "best_loss"
"""A fact of stored samples: the lowest loss so far."""


@dataclass(eq=False, repr=False)
class MostInterfered(Described):
    """Retrieve the samples whose loss the coming step would raise most (MIR).

    Of C candidates drawn at random, those with the highest

        MI-1   s(x) = ℓ(f_θᵛ(x), y) − ℓ(f_θ(x), y)
        MI-2   s(x) = ℓ(f_θᵛ(x), y) − min(ℓ(f_θ(x), y), ℓ*(x))

    where θᵛ are the look-ahead parameters and ℓ*(x) is the lowest loss of x in scoring so far.

    Attributes:
        candidates: C, or None for the whole memory. The paper has 50, and 25 on Mini-ImageNet.
        criterion: The paper has ``mi2`` on MNIST and ``mi1`` elsewhere.
        layers: ``head`` steps the last layer alone, which needs one pass through the body instead of two.
        virtual_step: ``sgd`` as in the paper, or ``optimizer`` for the optimizer's own next step.
        every: Score in every so many steps only: the best of the candidates are then replayed in as many steps, the
            highest first. 2 halves what scoring costs, and replays twice as many of the candidates. Needs ``every`` ×
            budget candidates, and looks at the slots of the whole memory in each step.

    Raises:
        InvalidInput: If one of them is not one of the above.
    """

    needs_gradient = True

    candidates: int | None = 50
    criterion: Literal["mi1", "mi2"] = "mi1"
    _: KW_ONLY
    layers: Layers = "all"
    virtual_step: VirtualStep = "sgd"
    every: int = 1

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_limit(candidates=self.candidates)
        check_positive(every=self.every)
        check_literals(self)

    def __call__(self, memory: Memory, incoming: Batch, gradient: Any, engine: Engine, budget: int) -> Retrieved:
        """Return the candidates with the highest interference; ties go to the lower slot."""
        if self.every > 1 and waiting(memory, incoming.task, budget):
            return next_waiting(memory, incoming.task, budget)
        candidates = memory.sample(self.candidates, exclude_task=incoming.task, ordered=True)  # B_C ~ M
        before, after = engine.losses(candidates, gradient, virtual_step=self.virtual_step, layers=self.layers)
        if self.criterion == "mi2":
            before = _best(memory, candidates, before)
        replayed, interference = highest(candidates, after - before, budget * self.every)  # B_MC
        if self.every == 1:
            return Retrieved(replayed, interference)
        wait(memory, replayed, interference)
        return next_waiting(memory, incoming.task, budget)


def _best(memory: Memory, candidates: Batch, losses: Tensor) -> Tensor:
    """Return the lowest loss of each candidate so far, and note it."""
    assert candidates.slots is not None
    best = torch.fmin(losses, memory.fact(BEST_LOSS, candidates.slots, fill=torch.inf).to(losses))
    memory.note(BEST_LOSS, candidates.slots, best)
    return torch.minimum(losses, best)  # NaN, which is not noted, counts now
