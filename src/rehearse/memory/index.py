"""Which slots hold rows, by task: what makes sampling as cheap as the sample, however large the memory."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]

EMPTY = -2  # the task of a slot that holds nothing; −1 is the task of a row whose task is unknown


def draw_distinct(generator: np.random.Generator, population: int, n: int) -> Slots:
    """``n`` distinct numbers below ``population``, every ordered choice equally likely, in O(n).

    Drawing with replacement and keeping first occurrences is drawing without replacement; while the population is
    at least twice the sample each draw is new with probability one half or more. A smaller one is shuffled whole.
    """
    if population < 2 * n:
        return generator.permutation(population)[:n]
    kept = generator.integers(0, population, size=n)
    while True:
        _, first = np.unique(kept, return_index=True)
        if len(first) == n:
            return kept
        kept = np.concatenate([kept[np.sort(first)], generator.integers(0, population, size=n - len(first))])


class TaskIndex:
    """The occupied slots, grouped by the task of their row.

    Each task has a dense array of its slots, and every slot knows its place in that array, so that a slot leaves
    by moving the last one into its place. Drawing takes O(sample + tasks), with or without tasks left out.
    """

    def __init__(self, capacity: int) -> None:
        self.task = np.full(capacity, EMPTY, dtype=np.int64)
        self._place = np.zeros(capacity, dtype=np.int64)
        self._row: dict[int, int] = {}  # task -> row of the two tables below
        self._members: list[Slots] = []
        self._counts = np.zeros(0, dtype=np.int64)
        self._total = 0

    def __len__(self) -> int:
        return self._total

    def occupied(self) -> Slots:
        """All slots that hold rows, in ascending order. O(capacity): for whole-memory work, not for a step."""
        return np.flatnonzero(self.task != EMPTY)

    def count(self, excluded: Collection[int] = ()) -> int:
        """How many rows there are outside the excluded tasks."""
        return self._total - sum(int(self._counts[self._row[task]]) for task in set(excluded) if task in self._row)

    def put(self, slots: Slots, tasks: Slots) -> None:
        """Let the (distinct) slots hold rows of the given tasks, whatever they held before."""
        self.clear(slots)
        for task in np.unique(tasks):
            self._append(int(task), slots[tasks == task])
        self.task[slots] = tasks

    def clear(self, slots: Slots) -> None:
        """Empty the (distinct) slots."""
        held = self.task[slots]
        for task in np.unique(held):
            if task != EMPTY:
                self._remove(int(task), slots[held == task])
        self.task[slots] = EMPTY

    def draw(self, generator: np.random.Generator, n: int, excluded: Collection[int] = ()) -> Slots:
        """``n`` distinct slots of rows outside the excluded tasks (all of them where there are fewer)."""
        counts = self._counts
        leave_out = [self._row[task] for task in set(excluded) if task in self._row]
        if leave_out:
            counts = counts.copy()
            counts[leave_out] = 0
        ends = np.cumsum(counts)
        population = int(ends[-1]) if len(ends) else 0
        ranks = draw_distinct(generator, population, min(n, population))
        rows = np.searchsorted(ends, ranks, side="right")
        places = ranks - (ends - counts)[rows] if len(ranks) else ranks
        slots = np.empty_like(ranks)
        for row in np.unique(rows):
            of_row = rows == row
            slots[of_row] = self._members[row][places[of_row]]
        return slots

    def _append(self, task: int, slots: Slots) -> None:
        row = self._row.setdefault(task, len(self._members))
        if row == len(self._members):
            self._members.append(np.empty(max(16, len(slots)), dtype=np.int64))
            self._counts = np.append(self._counts, 0)
        size = int(self._counts[row])
        if size + len(slots) > len(self._members[row]):
            grown = np.empty(2 * (size + len(slots)), dtype=np.int64)
            grown[:size] = self._members[row][:size]
            self._members[row] = grown
        self._members[row][size : size + len(slots)] = slots
        self._place[slots] = np.arange(size, size + len(slots))
        self._counts[row] += len(slots)
        self._total += len(slots)

    def _remove(self, task: int, slots: Slots) -> None:
        row = self._row[task]
        members, size = self._members[row], int(self._counts[row])
        kept = size - len(slots)
        leaving = self._place[slots]
        holes = leaving[leaving < kept]
        stays = np.ones(size - kept, dtype=bool)  # of the tail, which moves into the holes
        stays[leaving[leaving >= kept] - kept] = False
        movers = members[kept:size][stays]
        members[holes] = movers
        self._place[movers] = holes
        self._counts[row] = kept
        self._total -= len(slots)

    # The order inside the arrays decides what a draw gives, so it belongs to the state.

    def state(self) -> dict[str, list[int] | Slots]:
        members = [self._members[row][: int(self._counts[row])] for row in self._row.values()]
        return {
            "tasks": list(self._row),
            "counts": self._counts.copy(),
            "members": np.concatenate(members) if members else np.zeros(0, dtype=np.int64),
        }

    @classmethod
    def from_state(cls, capacity: int, tasks: Collection[int], counts: Slots, members: Slots) -> TaskIndex:
        index = cls(capacity)
        start = 0
        for task, count in zip(tasks, counts, strict=True):
            slots = members[start : start + int(count)]
            index._append(int(task), slots)
            index.task[slots] = task
            start += int(count)
        return index
