"""What to recall. A retrieval is called ``(memory, incoming, gradient, lookahead, budget)`` and gives the batch to
replay with its scores, or ``(None, None)`` when there is nothing to recall.

Memories of ``incoming.task`` are left out; a batch without a task leaves nothing out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Protocol

import torch
from torch import Tensor

from .batch import Batch
from .errors import InvalidInput, InvalidType
from .gradients import Gradient
from .lookahead import Lookahead
from .losses import DRAW
from .memory import Memory

BEST_LOSS = "best_loss"
Recall = tuple[Batch | None, Tensor | None]


class Retrieval(Protocol):
    """``needs_gradient`` says whether the incoming gradient is looked at; ``layers`` and ``virtual_step`` say what
    the look-ahead foresees for it."""

    needs_gradient: bool

    def __call__(
        self, memory: Memory, incoming: Batch, gradient: Gradient, lookahead: Lookahead, budget: int
    ) -> Recall: ...


class Uniform:
    """Recall at random: plain experience replay (ER).

    With ``candidates`` that many memories are drawn and passed through the network as `MostInterfered` does, and the
    budget is taken from them at random: a control that has everything of interfered retrieval but the choice.
    """

    needs_gradient = False

    def __init__(self, candidates: int | None = None) -> None:
        if candidates is not None:
            _check_candidates(candidates)
        self.candidates = candidates

    def __call__(
        self, memory: Memory, incoming: Batch, gradient: Gradient, lookahead: Lookahead, budget: int
    ) -> Recall:
        if memory.eligible(incoming.task) == 0:
            return None, None
        if self.candidates is None:
            return memory.sample(budget, exclude_task=incoming.task), None
        candidates = memory.sample(max(self.candidates, budget), exclude_task=incoming.task)
        lookahead.pass_through(candidates)
        return candidates.take(torch.arange(min(budget, len(candidates)))), None


class MostInterfered:
    """Recall the memories whose loss the coming update would raise most (MIR).

    Of C candidates drawn at random, the ``budget`` with the highest

        MI-1   s(x) = ℓ(f_θᵛ(x), y) − ℓ(f_θ(x), y)
        MI-2   s(x) = ℓ(f_θᵛ(x), y) − min(ℓ(f_θ(x), y), ℓ*(x))

    where θᵛ is the look-ahead and ℓ*(x) the lowest loss of x seen so far in scoring; ties go to the lower slot.

    The paper: C = 50 (25 on Mini-ImageNet), budget 10, MI-2 on MNIST and MI-1 elsewhere, the current task left out.
    ``candidates=None`` scores the whole memory. ``layers="head"`` foresees the last layer alone, which needs one pass
    through the body instead of two; ``virtual_step="optimizer"`` foresees the optimiser's real step. ``compile=True``
    scores through torch.compile, which takes its time at the first step and is worth it for long runs of large models;
    it changes the last digits of the scores.
    """

    needs_gradient = True

    def __init__(
        self,
        candidates: int | None = 50,
        criterion: Literal["mi1", "mi2"] = "mi1",
        *,
        layers: Literal["all", "head"] = "all",
        virtual_step: Literal["sgd", "optimizer"] = "sgd",
        compile: bool = False,
    ) -> None:
        if candidates is not None:
            _check_candidates(candidates)
        if compile and candidates is None:
            raise InvalidInput("compile needs a fixed number of candidates; give one, or leave compile out")
        if criterion not in ("mi1", "mi2"):
            raise InvalidInput(f"criterion is {criterion!r}; it must be 'mi1' or 'mi2'")
        self.candidates, self.criterion = candidates, criterion
        self.layers, self.virtual_step = layers, virtual_step
        self.compile_rows = candidates if compile else None

    def __call__(
        self, memory: Memory, incoming: Batch, gradient: Gradient, lookahead: Lookahead, budget: int
    ) -> Recall:
        if memory.eligible(incoming.task) == 0:
            return None, None
        candidates = self._candidates(memory, incoming)  # B_C ~ M
        before, after = lookahead.losses(candidates, gradient)  # ℓ(f_θ), ℓ(f_θᵛ)
        scores = after - self._baseline(memory, candidates, before)  # s_MI(B_C)
        # A foreseen loss that is no number any more is the worst that can happen to a memory.
        scores = torch.nan_to_num(scores, nan=torch.inf, posinf=torch.inf)
        ranked, order = scores.sort(descending=True, stable=True)  # S ← sort(s_MI(B_C))
        return lookahead.take(candidates, order[:budget]), ranked[:budget]  # B_MC ← {S_i}, i = 1 … B

    def _candidates(self, memory: Memory, incoming: Batch) -> Batch:
        if self.candidates is None:
            return memory.all(exclude_task=incoming.task)
        return memory.sample(self.candidates, exclude_task=incoming.task, ordered=True)  # so a stable sort settles ties

    def _baseline(self, memory: Memory, candidates: Batch, before: Tensor) -> Tensor:
        if self.criterion == "mi1":
            return before
        assert candidates.slots is not None
        best = memory.fact(BEST_LOSS, candidates.slots, fill=torch.inf).to(before)
        best = torch.minimum(before, best)
        memory.note(BEST_LOSS, candidates.slots, best)
        return best


class Draws:
    """Recall ``draws`` times, independently, and give all rows as one batch with the column ``draw``: 0 for the rows
    of the first draw, and so on. For losses that judge each draw by another term (`losses.DarkExperience`)."""

    def __init__(self, retrieval: Retrieval, draws: int = 2) -> None:
        if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
            raise InvalidInput(f"draws is {draws!r}; it must be a positive whole number")
        if isinstance(retrieval, type) or not callable(retrieval):
            raise InvalidType(f"the retrieval must be an object like Uniform(), this is {retrieval!r}")
        self.retrieval, self.draws = retrieval, draws
        self.needs_gradient = retrieval.needs_gradient
        self.layers, self.virtual_step = getattr(retrieval, "layers", "all"), getattr(retrieval, "virtual_step", "sgd")
        self.compile_rows = getattr(retrieval, "compile_rows", None)

    def __call__(
        self, memory: Memory, incoming: Batch, gradient: Gradient, lookahead: Lookahead, budget: int
    ) -> Recall:
        if memory.eligible(incoming.task) == 0:
            return None, None
        if self.draws == 1:
            return self.retrieval(memory, incoming, gradient, lookahead, budget)
        recalls = [self.retrieval(memory, incoming, gradient, lookahead, budget) for _ in range(self.draws)]
        batches = [batch for batch, _ in recalls if batch is not None]
        scores = [score for _, score in recalls if score is not None]
        assert all(batch.slots is not None for batch in batches)
        draw = torch.arange(self.draws).repeat_interleave(len(batches[0]))
        rows = memory.get(torch.cat([batch.slots for batch in batches if batch.slots is not None]))
        rows = replace(rows, columns={**rows.columns, DRAW: draw})
        if not scores:
            return rows, None
        ranked, order = torch.cat(scores).sort(descending=True, stable=True)
        return rows.take(order.cpu()), ranked


def _check_candidates(candidates: int) -> None:
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 1:
        raise InvalidInput(f"candidates is {candidates!r}; it must be a positive number, or None for the whole memory")
