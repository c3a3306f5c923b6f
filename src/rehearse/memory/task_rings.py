"""The last samples of every task."""

from __future__ import annotations

import numpy as np

from ..batch import Batch, task_column
from ..checks import check_limit
from .base import Memory
from .index import EMPTY, Slots
from .rows import ARRIVED


class TaskRingMemory(Memory):
    """A ring for each task: its last samples, of which the newest replaces the oldest.

    A task has room for capacity // ``tasks`` samples. If the number of tasks is not known (or there are more), the
    capacity is divided among those that have come, and the earlier ones give up their oldest samples.
    """

    def __init__(self, capacity: int, *, tasks: int | None = None, seed: int = 0) -> None:
        """Start empty.

        Args:
            capacity: The largest number of samples.
            tasks: The number of tasks, if it is known.
            seed: Decides which samples are drawn.
        """
        super().__init__(capacity, seed=seed)
        check_limit(tasks=tasks)
        self.tasks = tasks

    def share(self, batch: Batch) -> int:
        """Return how many samples a task may keep once this ``batch`` has come; refused if that is none."""
        held = self._index.task[self._index.occupied()]
        tasks = max(len(np.union1d(held, task_column(batch.task, len(batch)).numpy())), self.tasks or 0)
        return self._room_for_each(tasks, f"{tasks} tasks")

    def _check_policy(self, batch: Batch) -> None:
        self.share(batch)

    def _place(self, batch: Batch) -> Slots:
        share = self.share(batch)
        tasks = task_column(batch.task, len(batch)).numpy()
        for task in np.unique(self._index.task[self._index.occupied()]):
            self.discard(np.sort(self._by_age(task)[:-share]))
        free = np.flatnonzero(self._index.task == EMPTY)
        slots = np.empty(len(batch), dtype=np.int64)
        for task in np.unique(tasks):
            ring = self._by_age(task)
            ring, free = np.concatenate([free[: share - len(ring)], ring]), free[share - len(ring) :]
            arriving = np.flatnonzero(tasks == task)
            slots[arriving] = ring[np.arange(len(arriving)) % share]
        return slots

    def _by_age(self, task: int) -> Slots:
        """Return the slots of a task's samples, oldest first."""
        slots = np.flatnonzero(self._index.task == task)
        return slots[np.argsort(self._rows.columns[ARRIVED].numpy()[slots])]
