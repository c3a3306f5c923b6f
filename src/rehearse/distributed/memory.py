"""How ranks hold one memory: each runs the policy on the samples of all, and stores its own."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch
from ..errors import InvalidInput
from ..memory import ClassBalancedMemory, Memory, ReservoirMemory, RingMemory
from ..memory.index import EMPTY, Slots
from .ranks import Ranks, hash_of

KNOWN = (ReservoirMemory, RingMemory, ClassBalancedMemory)
"""Policies that decide by the number of samples, or also by their labels; not by which samples are stored."""


class RankShares:
    """One memory of several ranks, as one of them sees it.

    All ranks run the same policy with the same random numbers on the concatenation of their incoming batches, in the
    order of the ranks. Each stores those of its own samples that the policy keeps, in the slots that it gives them, and
    erases its sample in a slot that another rank's sample takes. A slot is therefore occupied on one rank at most, and
    the union of all ranks' samples is, slot by slot, what one process would hold: the policy's law holds for it,
    however unequal the shares of the stream are.
    """

    def __init__(self, ranks: Ranks) -> None:
        """Set the ranks."""
        self.ranks = ranks

    def place(self, memory: Memory, batch: Batch, arrived: Tensor) -> Slots:
        """Return the slot of each sample of this rank, −1 if it is not kept; what others take is erased.

        Args:
            memory: The memory, in this rank.
            batch: This rank's samples.
            arrived: Their numbers in its stream so far, which become those in the stream of all.
        """
        counts = self.ranks.arriving
        if not counts:
            raise InvalidInput("a memory that ranks share is filled by one process: save its learner, and load it here")
        start, total = sum(counts[: self.ranks.rank]), sum(counts)
        labels = torch.zeros(total, dtype=torch.int64)
        if isinstance(memory, ClassBalancedMemory):
            self.ranks.agree("labels")
            padded = F.pad(batch.y.long().to(self.ranks.device), (0, max(counts) - len(batch)))
            gathered = self.ranks.gather(padded)
            labels = torch.cat([part[:count] for part, count in zip(gathered, counts, strict=True)]).cpu()
        slots = memory._place(Batch(labels, labels))
        last = {slot: number for number, slot in enumerate(slots.tolist()) if slot >= 0}
        own = {slot: number - start for slot, number in last.items() if start <= number < start + len(batch)}
        others = np.array(sorted(last.keys() - own.keys()), dtype=np.int64)
        memory.discard(others[memory._index.task[others] != EMPTY])
        memory.seen += total - len(batch)
        arrived += start
        kept = np.full(len(batch), -1)
        kept[list(own.values())] = list(own)
        return kept


def shareable(memory: Memory) -> list[object]:
    """Return what must be the same on all ranks before they share a memory.

    Raises:
        InvalidInput: If the memory cannot be shared.
    """
    if type(memory) not in KNOWN or memory._rows.file is not None:
        names = ", ".join(kind.__name__ for kind in KNOWN)
        where = " with a path" if type(memory) in KNOWN else ""
        raise InvalidInput(f"a {type(memory).__name__}{where} is not shared by ranks; {names} without a path are")
    if memory.seen:
        raise InvalidInput("the memory of several ranks starts empty; to bring samples, load a save")
    return [memory.__class__.__name__, memory.capacity, hash_of(memory._insertion.bit_generator.state)]


def share_memory(memory: Memory, ranks: Ranks) -> None:
    """Make a `shareable` memory this rank's part of that of all; its samples are drawn with numbers of its own."""
    memory._sampling = np.random.Generator(memory._sampling.bit_generator.jumped(ranks.rank))  # type: ignore[attr-defined]
    memory.shares = RankShares(ranks)
