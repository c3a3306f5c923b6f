"""The best samples of every class, and a sample of the running task."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from ..batch import Batch, task_column
from ..errors import InvalidInput
from .base import Memory
from .index import EMPTY, Slots
from .rows import TARGET

RANK = "rank"  # a fact: 0 for a group's best exemplar, and so on; −1 for samples of the running task
RUNNING = -1.0

Groups = NDArray[np.int64]


class ExemplarMemory(Memory):
    """Exemplars of each class of each task, best first; the remaining room holds a sample of the running task.

    Of g groups (a class within a task) each may keep capacity // g exemplars: as groups come, the others give up
    their last-ranked ones. The samples of the running task are a reservoir sample over the room that is left, until
    `enrol` replaces them by the exemplars chosen from them. Never more than ``capacity`` samples in all.
    """

    _policy = ("_arrived",)

    def __init__(self, capacity: int, *, seed: int = 0) -> None:
        """Start empty.

        Args:
            capacity: The largest number of samples.
            seed: Decides which samples of the running task are kept.
        """
        super().__init__(capacity, seed=seed)
        self._arrived = 0  # samples of the running task that have come

    def share(self, batch: Batch) -> int:
        """Return how many exemplars a group may keep once this batch has come; refused if that is none."""
        groups = np.concatenate([self._groups(self._index.occupied()), _groups_of(batch)])
        count = max(len(np.unique(groups, axis=0)), 1)
        return self._room_for_each(count, f"exemplars of {count} classes")

    def running(self) -> Slots:
        """Return the slots of the running task's samples."""
        slots = self._index.occupied()
        ranks = self.fact(RANK, torch.from_numpy(slots), fill=RUNNING)
        running: Slots = slots[ranks.numpy() == RUNNING]
        return running

    def enrol(self, groups: Iterable[Batch]) -> None:
        """End a task: store its exemplars, one batch per group, best first, in place of all running samples."""
        groups, seen = list(groups), self.seen
        self.discard(self.running())
        for group in groups:
            slots = self.keep(group, self.check(group))
            self.note(RANK, slots, torch.arange(len(slots)))
        self.seen, self._arrived = seen, 0  # they were seen before

    def _check_policy(self, batch: Batch) -> None:
        self.share(batch)

    def _place(self, batch: Batch) -> Slots:
        share = self.share(batch)
        slots = self._index.occupied()
        ranks = self.fact(RANK, torch.from_numpy(slots), fill=RUNNING).numpy()
        # A task that goes on after its end runs again.
        again = (self._groups(slots)[:, None] == _groups_of(batch)[None]).all(2).any(1)
        self.note(RANK, torch.from_numpy(slots[again]), RUNNING)
        self.discard(slots[~again & (ranks >= share)])
        free = np.flatnonzero(self._index.task == EMPTY)[: len(batch)]
        pool = np.sort(np.concatenate([self.running(), free]))
        # For each late sample a number below the count of samples up to itself: Vitter's algorithm R.
        before = max(self._arrived, len(pool) - len(free)) + len(free)
        drawn = self._insertion.integers(0, before + 1 + np.arange(len(batch) - len(free)))
        self._arrived += len(batch)
        late = np.append(pool, -1)[np.minimum(drawn, len(pool))]
        return np.concatenate([free, late])

    def _adopt_policy(self, other: Memory) -> None:
        raise InvalidInput(
            "exemplars belong to a model; give the samples to learner.remember(), which chooses them anew"
        )

    def _groups(self, slots: Slots) -> Groups:
        """Return task and class of the samples at these slots."""
        if not len(slots):
            return np.empty((0, 2), dtype=np.int64)
        return np.stack([self._index.task[slots], self._rows.columns[TARGET].numpy()[slots].astype(np.int64)], axis=1)


def _groups_of(batch: Batch) -> Groups:
    return np.stack([task_column(batch.task, len(batch)).numpy(), batch.y.long().cpu().numpy()], axis=1)
