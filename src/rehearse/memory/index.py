"""Which slots hold samples, by task: sampling costs what the sample costs, however large the memory."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Collection
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..checks import check, count, each, numbers
from ..errors import CheckpointError
from .changes import Changes

Slots = NDArray[np.int64]

EMPTY = -2  # the task of a slot that holds nothing; −1 is the task of a sample whose task is unknown


class TaskIndex:
    """The occupied slots, grouped by the task of their sample.

    Each task has a list, dense with its slots, and every slot knows its place in that list, so that a slot leaves by
    moving the last one into its place. Drawing takes O(sample) and one sum over the tasks, with or without tasks left
    out.
    """

    def __init__(self, capacity: int, changes: Changes) -> None:
        """Start empty."""
        self.task = np.full(capacity, EMPTY, dtype=np.int64)
        self.lists: dict[int, array[int]] = {}  # task -> its slots
        self._place = np.zeros(capacity, dtype=np.int64)
        self._changes = changes

    def occupied(self) -> Slots:
        """Return all slots that hold samples, in ascending order; O(capacity), so not for a step."""
        return np.flatnonzero(self.task != EMPTY)

    def count(self, excluded: Collection[int] = ()) -> int:
        """Return how many samples there are outside the excluded tasks."""
        return sum(len(members) for task, members in self.lists.items() if task not in excluded)

    def put(self, slots: Slots, tasks: Slots) -> None:
        """Let the (distinct) slots hold samples of the given tasks, whatever they held before."""
        self.clear(slots)
        for task in sorted(set(tasks.tolist())):
            self._append(task, slots[tasks == task])

    def clear(self, slots: Slots) -> None:
        """Empty the (distinct) slots."""
        self._changes.note(self.task, slots)
        self._changes.note(self._place, slots)
        tasks = self.task[slots]
        for task in sorted(set(tasks.tolist()) - {EMPTY}):
            self._remove(task, slots[tasks == task])
        self.task[slots] = EMPTY

    def draw(self, generator: np.random.Generator, n: int, excluded: Collection[int] = ()) -> Slots:
        """Return ``n`` distinct slots of samples outside the excluded tasks (all of them where there are fewer).

        Every ordered choice is equally likely. numpy draws few from many by Floyd's method, in O(n), and otherwise
        shuffles a population of at most 10,000 or 50 n: the time is that of the sample, not of the memory.
        """
        lists = [members for task, members in self.lists.items() if task not in excluded]
        ends = list(accumulate(map(len, lists)))
        population = ends[-1] if lists else 0
        ranks = generator.choice(population, min(n, population), replace=False).tolist()
        numbers = [bisect_right(ends, rank) for rank in ranks]
        drawn = [lists[number][rank - ends[number]] for number, rank in zip(numbers, ranks, strict=True)]
        return np.array(drawn, dtype=np.int64)

    def _append(self, task: int, slots: Slots) -> None:
        members = self.lists.setdefault(task, array("q"))
        self._changes.add(members.__delitem__, slice(len(members), None))
        self._place[slots], self.task[slots] = np.arange(len(members), len(members) + len(slots)), task
        members.extend(slots.tolist())

    def _remove(self, task: int, slots: Slots) -> None:
        members, leaving = self.lists[task], self._place[slots].tolist()
        kept, gone = len(members) - len(leaving), set(leaving)
        movers = [members[place] for place in range(kept, len(members)) if place not in gone]
        holes = [place for place in leaving if place < kept]
        self._changes.note(self._place, movers)
        self._changes.add(members.__setitem__, slice(kept, None), members[kept:])
        for hole, mover in zip(holes, movers, strict=True):
            self._changes.add(members.__setitem__, hole, members[hole])
            members[hole] = mover
        self._place[movers] = holes
        del members[kept:]

    def state(self) -> dict[str, Any]:
        """Return the slots of each task, in the order that decides what a draw gives."""
        return {
            "tasks": list(self.lists),
            "counts": torch.tensor([len(members) for members in self.lists.values()], dtype=torch.int64),
            "members": torch.from_numpy(np.concatenate([self.task[:0], *self.lists.values()])),
        }

    @classmethod
    def from_state(cls, capacity: int, changes: Changes, state: dict[str, Any]) -> TaskIndex:
        """Return an index that draws as the one that `state` described."""
        form = {"tasks": each(lambda task: task == -1 or count(task)), "counts": numbers(torch.int64, 0, capacity + 1)}
        check(state, form | {"members": numbers(torch.int64, 0, capacity)}, "the memory's index")
        tasks, members = state["tasks"], state["members"]
        if len(members.unique()) < len(members) or len(set(tasks)) < len(tasks):
            raise CheckpointError("the memory's index has a slot or a task twice")
        index = cls(capacity, changes)
        for task, part in zip(tasks, torch.split(members, state["counts"].tolist()), strict=True):
            index._append(task, part.numpy())
        return index


def in_parts(values: Any, size: int) -> list[Any]:
    """Return consecutive views of an array, none of them larger than ``size``; none at all of no values."""
    return np.split(values, range(size, len(values), size)) if len(values) else []
