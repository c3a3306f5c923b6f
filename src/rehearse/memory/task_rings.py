"""The last rows of every task."""

from __future__ import annotations

import numpy as np

from ..batch import Batch, task_column
from ..errors import InvalidInput
from .base import ARRIVED, Memory
from .index import EMPTY, Slots


class TaskRingMemory(Memory):
    """A ring for each task: its last rows, the oldest making way for the newest.

    A task has room for capacity // ``tasks`` rows. Where the number of tasks is not known (or there are more), the
    capacity is divided among those that have come, and the earlier ones give up their oldest rows.
    """

    def __init__(self, capacity: int, *, tasks: int | None = None, seed: int = 0) -> None:
        super().__init__(capacity, seed=seed)
        if tasks is not None and (isinstance(tasks, bool) or not isinstance(tasks, int) or tasks < 1):
            raise InvalidInput(f"tasks is {tasks!r}; it must be a positive number, or None where it is unknown")
        self.tasks = tasks

    def share(self, batch: Batch) -> int:
        """How many rows a task may keep when this batch has come; refused where that is none."""
        held = self._index.task[self._index.occupied()]
        tasks = len(np.union1d(held, task_column(batch.task, len(batch)).numpy()))
        share = self.capacity // max(tasks, self.tasks or 0)
        if share == 0:
            raise InvalidInput(
                f"{self.capacity} rows are too few for {max(tasks, self.tasks or 0)} tasks; "
                "every task needs at least one: give the memory a larger capacity"
            )
        return share

    def _place(self, batch: Batch) -> Slots:
        share = self.share(batch)
        tasks = task_column(batch.task, len(batch)).numpy()
        for task in np.unique(self._index.task[self._index.occupied()]):
            self.forget(slots=self._by_age(task)[:-share].tolist())
        free = np.flatnonzero(self._index.task == EMPTY)
        slots = np.empty(len(batch), dtype=np.int64)
        for task in np.unique(tasks):
            ring = self._by_age(task)
            ring, free = np.concatenate([free[: share - len(ring)], ring]), free[share - len(ring) :]
            arriving = np.flatnonzero(tasks == task)
            slots[arriving] = ring[np.arange(len(arriving)) % share]
        return slots

    def _by_age(self, task: int) -> Slots:
        """The slots of a task's rows, oldest first."""
        slots = np.flatnonzero(self._index.task == task)
        if not len(slots):
            return slots
        return slots[np.argsort(self._rows.columns[ARRIVED].numpy()[slots])]
