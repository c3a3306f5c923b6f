"""The best rows of every class, and a sample of the task that is running."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..batch import Batch, task_column
from ..errors import InvalidInput
from ..undo import Restore
from .base import TARGET, Memory
from .index import EMPTY, Slots

RANK = "rank"  # a fact: 0 for a group's best exemplar, and so on; −1 for rows of the running task
RUNNING = -1.0

Groups = NDArray[np.int64]


class ExemplarMemory(Memory):
    """Exemplars of each class of each task, best first; the room they leave holds a sample of the running task.

    Of g groups (a class within a task) each may keep capacity // g exemplars: as groups come, the others give up
    their last-ranked ones. Rows of the running task are a reservoir sample over the room that is left, until `enrol`
    replaces them by the exemplars chosen from them. Never more than ``capacity`` rows in all.
    """

    def __init__(self, capacity: int, *, seed: int = 0) -> None:
        super().__init__(capacity, seed=seed)
        self._arrived = 0  # rows of the running task that have come

    def share(self, batch: Batch | None = None) -> int:
        """How many exemplars a group may keep (once this batch has come); refused where that is none."""
        held = self._groups(self._index.occupied())
        groups = held if batch is None else np.concatenate([held, _groups_of(batch)])
        count = max(len(np.unique(groups, axis=0)), 1)
        if count > self.capacity:
            raise InvalidInput(
                f"{self.capacity} rows are too few for exemplars of {count} classes; give the memory a larger capacity"
            )
        return self.capacity // count

    def running(self) -> Slots:
        """The slots of the running task's rows."""
        slots = self._index.occupied()
        running: Slots = slots[self._ranks(slots) == RUNNING]
        return running

    def enrol(self, groups: Iterable[Batch]) -> None:
        """The task is over: these are its exemplars, one batch a group, best first, in place of all running rows."""
        groups, seen = list(groups), self.seen
        self.forget(slots=self.running().tolist())
        for group in groups:
            slots = self.keep(group, self.check(group))
            self.note(RANK, slots, torch.arange(len(slots)))
        self.seen, self._arrived = seen, 0  # they were seen before

    def _place(self, batch: Batch) -> Slots:
        share = self.share(batch)
        slots = self._index.occupied()
        ranks = self._ranks(slots)
        again = _isin(self._groups(slots), _groups_of(batch))  # a task that goes on after its end: it runs again
        self.note(RANK, torch.from_numpy(slots[again]), torch.full((int(again.sum()),), RUNNING))
        self.forget(slots=slots[~again & (ranks >= share)].tolist())
        free = np.flatnonzero(self._index.task == EMPTY)[: len(batch)]
        pool = np.sort(np.concatenate([self.running(), free]))
        drawn = self._draws(len(batch) - len(free), max(self._arrived, len(pool) - len(free)) + len(free))
        self._arrived += len(batch)
        late = np.where(drawn < len(pool), pool[np.minimum(drawn, len(pool) - 1)], -1) if len(pool) else drawn * 0 - 1
        return np.concatenate([free, late])

    def _draws(self, rows: int, before: int) -> Slots:
        """For each late row a number below the count of rows up to itself: Vitter's algorithm R."""
        return self._insertion.integers(0, before + 1 + np.arange(rows))

    def _ranks(self, slots: Slots) -> NDArray[np.float32]:
        ranks: NDArray[np.float32] = self.fact(RANK, torch.from_numpy(slots), fill=RUNNING).numpy()
        return ranks

    def _groups(self, slots: Slots) -> Groups:
        """Task and class of the rows at these slots."""
        if not len(slots):
            return np.empty((0, 2), dtype=np.int64)
        return np.stack([self._index.task[slots], self._rows.columns[TARGET].numpy()[slots].astype(np.int64)], axis=1)

    def _policy_snapshot(self) -> Restore:
        arrived = self._arrived

        def restore() -> None:
            self._arrived = arrived

        return restore

    def _policy_state(self) -> dict[str, Any]:
        return {"arrived": self._arrived}

    def _load_policy_state(self, state: dict[str, Any]) -> None:
        self._arrived = int(state["arrived"])


def _groups_of(batch: Batch) -> Groups:
    return np.stack([task_column(batch.task, len(batch)).numpy(), batch.y.long().cpu().numpy()], axis=1)


def _isin(groups: Groups, others: Groups) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = (groups[:, None] == others[None]).all(2).any(1)
    return found
