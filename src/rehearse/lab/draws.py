"""Several retrievals at once, as DER++ was published."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ..batch import Batch
from ..engine import Engine
from ..errors import InvalidInput, InvalidType
from ..losses import DRAW
from ..memory import Memory
from ..retrieval import Retrieval, Retrieved


class Draws:
    """Retrieve several times, independently, and return all samples as one batch with the column ``draw``.

    The column is 0 for the samples of the first draw, and so on: for losses that judge each draw by another term
    (`losses.DarkExperience`).
    """

    def __init__(self, retrieval: Retrieval, draws: int = 2) -> None:
        """Repeat a ``retrieval`` ``draws`` times."""
        if isinstance(draws, bool) or not isinstance(draws, int) or draws < 1:
            raise InvalidInput(f"draws is {draws!r}; it must be a positive whole number")
        if isinstance(retrieval, type) or not callable(retrieval):
            raise InvalidType(f"the retrieval must be an object like Uniform(), this is {retrieval!r}")
        self.retrieval, self.draws, self.needs_gradient = retrieval, draws, retrieval.needs_gradient
        self.layers, self.virtual_step = getattr(retrieval, "layers", "all"), getattr(retrieval, "virtual_step", "sgd")

    def __call__(self, memory: Memory, incoming: Batch, gradient: Any, engine: Engine, budget: int) -> Retrieved:
        """Return the samples of all draws, highest interference first."""
        if self.draws == 1:
            return Retrieved(*self.retrieval(memory, incoming, gradient, engine, budget))
        found = [self.retrieval(memory, incoming, gradient, engine, budget) for _ in range(self.draws)]
        slots = [batch.slots for batch, _ in found if batch is not None and batch.slots is not None]
        draw = torch.arange(len(slots)).repeat_interleave(len(slots[0]))
        samples = memory.get(torch.cat(slots))
        samples = replace(samples, columns={**samples.columns, DRAW: draw})
        interference = [scores for _, scores in found if scores is not None]
        if not interference:
            return Retrieved(samples)
        ranked, order = torch.cat(interference).sort(descending=True, stable=True)
        return Retrieved(samples.take(order.cpu()), ranked)
