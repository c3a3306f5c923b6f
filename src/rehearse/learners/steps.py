"""What the methods that step on each incoming batch, and then store it, do the same way."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ..batch import Batch, Step, Tree
from ..undo import Operations, Undoable, all_or_nothing, assign, run
from .base import Learner

Updates = Iterator[tuple[Step, Tree | None, Operations]]


class StepLearner(Learner):
    """A learner that takes ``updates`` steps on each incoming batch, and then stores the batch."""

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None, weight: Any = None, **columns: Any) -> Step:
        """Learn from an incoming batch; see `Learner.observe`."""
        incoming = self._accept(x, y, task, id=id, weight=weight, **columns)
        with self.lock, all_or_nothing(*self._undone()) as commit:
            stored = self._admit(incoming)
            with self.network.training(self.updates, incoming.x):
                for number, update in enumerate(self._steps(incoming), 1):
                    step, logits, operations = update
                    if number < self.updates:
                        run(operations)  # those of the last update are the commit's
            self._store(incoming, stored)
            commit(operations, assign(self, progress=self.progress.after(incoming, self.updates, logits)))
        return step

    @abstractmethod
    def _steps(self, incoming: Batch) -> Updates:
        """Yield for each update what it does, the batch's logits (None: they are of classes), the optimizer's step."""

    def _admit(self, incoming: Batch) -> dict[str, Tensor]:
        """Check a batch, inside the transaction, and return what `_store` needs besides."""
        return {} if self.memory is None else self.memory.check(incoming)

    def _store(self, samples: Batch, columns: dict[str, Tensor]) -> None:
        if self.memory is not None:
            self.memory.keep(samples, columns)

    def _undone(self) -> list[Undoable]:
        """Return what is restored if anything fails."""
        return [part for part in (self.network, self.memory, self.augment) if part is not None]
