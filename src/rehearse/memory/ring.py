"""The last rows seen."""

from __future__ import annotations

import numpy as np

from ..batch import Batch
from .base import Memory
from .index import Slots


class RingMemory(Memory):
    """The last ``capacity`` rows of the stream, exactly: row t lives in slot t mod capacity until row t + capacity.

    Nothing is left to chance. A slot emptied by `forget` stays open until the ring comes round to it, so what is held
    is always the last rows seen without the forgotten ones.
    """

    def _place(self, batch: Batch) -> Slots:
        return np.arange(self.seen, self.seen + len(batch)) % self.capacity
