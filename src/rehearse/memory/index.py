"""Which slots hold samples, by task: sampling costs what the sample costs, however large the memory."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from .changes import Changes

Slots = NDArray[np.int64]

EMPTY = -2  # the task of a slot that holds nothing; −1 is the task of a sample whose task is unknown


class TaskIndex:
    """The occupied slots, grouped by the task of their sample.

    Each task has a stretch of one pool, dense with its slots, and every slot knows its place in that stretch, so
    that a slot leaves by moving the last one into its place. A stretch that is full moves to the end of the pool and
    gets twice the room. Drawing takes O(sample) and one sum over the tasks, with or without tasks left out.
    """

    TABLES: Final = ("_row", "_start", "_room", "_counts")
    """The attributes that are changed in place, beside the entries of slots, which `Changes` notes."""

    def __init__(self, capacity: int, changes: Changes) -> None:
        """Start empty."""
        self._changes = changes
        self.task = np.full(capacity, EMPTY, dtype=np.int64)
        self._place = np.zeros(capacity, dtype=np.int64)
        self._row: dict[int, int] = {}  # task -> row of the table below
        # One row per task: where its stretch of the pool starts, its room, how many slots are in it.
        self._start, self._room, self._counts = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self._pool = np.empty(0, dtype=np.int64)
        self._used = 0  # of the pool

    def __len__(self) -> int:
        return int(self._counts.sum())

    def occupied(self) -> Slots:
        """Return all slots that hold samples, in ascending order; O(capacity), so not for a step."""
        return np.flatnonzero(self.task != EMPTY)

    def count(self, excluded: Collection[int] = ()) -> int:
        """Return how many samples there are outside the excluded tasks."""
        return len(self) - sum(int(self._counts[row]) for row in self._rows(excluded))

    def put(self, slots: Slots, tasks: Slots) -> None:
        """Let the (distinct) slots hold samples of the given tasks, whatever they held before."""
        self.clear(slots)
        for task, of_task in _by_value(slots, tasks):
            self._append(task, of_task)

    def clear(self, slots: Slots) -> None:
        """Empty the (distinct) slots."""
        self._changes.note(self.task, slots)
        self._changes.note(self._place, slots)
        for task, of_task in _by_value(slots, self.task[slots]):
            if task != EMPTY:
                self._remove(task, of_task)
        self.task[slots] = EMPTY

    def draw(self, generator: np.random.Generator, n: int, excluded: Collection[int] = ()) -> Slots:
        """Return ``n`` distinct slots of samples outside the excluded tasks (all of them where there are fewer).

        Every ordered choice is equally likely. numpy draws few from many by Floyd's method, in O(n), and otherwise
        shuffles a population of at most 10,000 or 50 n: the time is that of the sample, not of the memory.
        """
        counts, left_out = self._counts, self._rows(excluded)
        if left_out:
            counts = counts.copy()
            counts[left_out] = 0
        ends = counts.cumsum()
        population = int(ends[-1]) if len(ends) else 0
        ranks = generator.choice(population, min(n, population), replace=False)
        rows = ends.searchsorted(ranks, side="right")
        slots: Slots = self._pool[ranks + (self._start - (ends - counts))[rows]]
        return slots

    def _rows(self, tasks: Collection[int]) -> list[int]:
        return [self._row[task] for task in set(tasks) if task in self._row]

    def _append(self, task: int, slots: Slots) -> None:
        row = self._row.setdefault(task, len(self._counts))
        if row == len(self._counts):
            tables = (self._start, self._room, self._counts)
            self._start, self._room, self._counts = (np.append(table, 0) for table in tables)
        size = int(self._counts[row])
        grown = size + len(slots)
        if grown > self._room[row]:
            self._move(row, max(16, 2 * grown))
        start = int(self._start[row])
        self._pool[start + size : start + grown] = slots
        self._place[slots], self.task[slots] = np.arange(size, grown), task
        self._counts[row] = grown

    def _move(self, row: int, room: int) -> None:
        """Give a task a larger stretch, at the end of the pool; a full pool is replaced by one of twice the size."""
        if self._used + room > len(self._pool):
            pool, starts = np.empty(2 * (int(self._room.sum()) + room), np.int64), self._room.cumsum() - self._room
            for before, after, count in zip(self._start, starts, self._counts, strict=True):
                pool[after : after + count] = self._pool[before : before + count]
            self._pool, self._start, self._used = pool, starts, int(self._room.sum())
        size, start = int(self._counts[row]), int(self._start[row])
        self._pool[self._used : self._used + size] = self._pool[start : start + size]
        self._start[row], self._room[row] = self._used, room
        self._used += room

    def _remove(self, task: int, slots: Slots) -> None:
        row = self._row[task]
        size, start = int(self._counts[row]), int(self._start[row])
        members = self._pool[start : start + size]
        kept = size - len(slots)
        leaving = self._place[slots]
        self._changes.note(members, slice(kept, size))
        self._changes.note(members, leaving)
        self._changes.note(self._place, members[kept:].copy())
        stays = np.ones(len(slots), dtype=bool)  # of the tail, which moves into the holes
        stays[leaving[leaving >= kept] - kept] = False
        movers, holes = members[kept:][stays], leaving[leaving < kept]
        members[holes] = movers
        self._place[movers] = holes
        self._counts[row] = kept

    def state(self) -> dict[str, Any]:
        """Return the slots of each task, in the order that decides what a draw gives."""
        stretches = zip(self._start, self._counts, strict=True)
        members = [self._pool[start : start + count] for start, count in stretches]
        return {
            "tasks": list(self._row),
            "counts": torch.as_tensor(self._counts.copy()),
            "members": torch.as_tensor(np.concatenate([self._pool[:0], *members])),
        }

    @classmethod
    def from_state(cls, capacity: int, changes: Changes, state: dict[str, Any]) -> TaskIndex:
        """Return an index that draws as the one that `state` described."""
        index = cls(capacity, changes)
        members = torch.split(state["members"], state["counts"].tolist())
        for task, slots in zip(state["tasks"], members, strict=True):
            index._append(int(task), slots.numpy())
        return index


def _by_value(slots: Slots, values: Slots) -> Iterator[tuple[int, Slots]]:
    """Yield the slots of each value that occurs, values ascending; most often there is only one."""
    distinct = sorted(set(values.tolist()))
    for value in distinct:
        yield value, slots if len(distinct) == 1 else slots[values == value]


def in_parts(values: Any, size: int) -> list[Any]:
    """Return consecutive views of an array, none of them larger than ``size``; none at all of no values."""
    return np.split(values, range(size, len(values), size)) if len(values) else []
