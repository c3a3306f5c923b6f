"""A uniform sample of everything seen."""

from __future__ import annotations

import numpy as np

from ..batch import Batch
from .base import Memory
from .index import Slots


class ReservoirMemory(Memory):
    """Reservoir sampling (Vitter's algorithm R): of n samples seen, each is held with probability capacity / n.

    The t-th sample of the stream takes slot t while there is room; after that it draws a number below t and takes the
    slot of that number if there is one. The rule holds at every moment and for batches of any size, because every
    sample of a batch draws from its own t.
    """

    def _place(self, batch: Batch) -> Slots:
        slots = np.arange(self.seen, self.seen + len(batch))
        early = max(self.capacity - self.seen, 0)
        if early < len(slots):
            drawn = self._insertion.integers(0, slots[early:] + 1)
            slots[early:] = np.where(drawn < self.capacity, drawn, -1)
        return slots
