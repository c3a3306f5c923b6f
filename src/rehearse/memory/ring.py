"""The last samples seen."""

from __future__ import annotations

import numpy as np

from ..batch import Batch
from .base import Memory
from .index import Slots


class RingMemory(Memory):
    """The last ``capacity`` samples of the stream: sample t is in slot t mod capacity until sample t + capacity comes.

    Nothing is random. A slot emptied by `forget` stays open until the ring comes round to it, so the memory always
    holds the last samples seen without the forgotten ones.
    """

    _numbered = True

    def _place(self, batch: Batch) -> Slots:
        return np.arange(self.seen, self.seen + len(batch)) % self.capacity
