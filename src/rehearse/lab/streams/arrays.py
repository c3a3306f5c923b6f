"""Streams over rows at hand: arrays in memory, memory-mapped arrays, tensors, and trees of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rehearse.batch import Batch, Tree, tree_concatenate, tree_map
from rehearse.errors import InvalidInput, InvalidType
from rehearse.lab.streams.base import Scaling, Stream, check_count, check_scaling, generator

Index: TypeAlias = NDArray[np.int64]


class Source(Protocol):
    """Rows that are fetched when they are asked for, by their position."""

    def __len__(self) -> int: ...

    def take(self, positions: Index) -> Batch: ...


class Rows:
    """Some rows of arrays that may be far larger than the main memory: only what is taken is copied."""

    def __init__(self, x: Tree, y: Tensor, index: Index) -> None:
        self._x, self._y, self._index = x, y, index

    def __len__(self) -> int:
        return len(self._index)

    def take(self, positions: Index) -> Batch:
        rows = self._index[positions]
        return Batch(tree_map(lambda leaf: take_rows(leaf, rows), self._x), self._y[torch.from_numpy(rows)])


class Joined:
    """Several sources, one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._ends = np.cumsum([len(source) for source in sources])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, positions: Index) -> Batch:
        owner = np.searchsorted(self._ends, positions, side="right")
        pieces = [
            self._sources[k].take(positions[owner == k] - (self._ends[k] - len(self._sources[k])))
            for k in np.unique(owner)
        ]
        together = Batch(tree_concatenate([piece.x for piece in pieces]), torch.cat([p.y for p in pieces]))
        # The pieces stand owner by owner; put every row back where it was asked for.
        return together.take(torch.from_numpy(np.argsort(np.argsort(owner, kind="stable"), kind="stable")))


class TaskSets(Sequence[Batch]):
    """One evaluation batch per task, gathered when it is asked for."""

    def __init__(self, sources: Sequence[Source], numbered: bool = True) -> None:
        self._sources, self._numbered = sources, numbered

    def __len__(self) -> int:
        return len(self._sources)

    @overload
    def __getitem__(self, which: int) -> Batch: ...
    @overload
    def __getitem__(self, which: slice) -> list[Batch]: ...
    def __getitem__(self, which: int | slice) -> Batch | list[Batch]:
        tasks = range(len(self._sources))[which]
        return self._batch(tasks) if isinstance(tasks, int) else [self._batch(task) for task in tasks]

    def _batch(self, task: int) -> Batch:
        return replace(whole(self._sources[task]), task=task if self._numbered else None)


class ArrayStream(Stream):
    """Tasks one after the other, each a source of rows, in batches.

    ``seed`` decides the order within each task and nothing else. With ``numbered=False`` the batches carry no
    task.
    """

    def __init__(
        self,
        name: str,
        tasks: Sequence[Source],
        *,
        evaluation: Mapping[str, Sequence[Batch]] | None = None,
        n_classes: int | None = None,
        batch_size: int = 10,
        seed: int = 0,
        scaling: Scaling = "unit",
        shuffle: bool = True,
        drop_last: bool = True,
        epochs: int = 1,
        numbered: bool = True,
    ) -> None:
        self.name = name
        self.batch_size: int = check_count("batch_size", batch_size)
        self.scaling = check_scaling(scaling)
        self.evaluation = {} if evaluation is None else evaluation
        self.n_classes = n_classes
        self.n_tasks = len(tasks) if numbered else None
        self._tasks = tasks
        self._seed = check_count("seed", seed, least=0)
        self._shuffle, self._drop_last, self._numbered = shuffle, drop_last, numbered
        self._epochs = check_count("epochs", epochs)
        self.length = self._epochs * sum(self._batches_of(source) for source in tasks)
        if self.length == 0:
            raise InvalidInput(f"no task of the stream {name} has enough rows for one batch of {batch_size}")
        x = next(source for source in tasks if len(source)).take(np.zeros(1, dtype=np.int64)).x
        self.input_shape = tuple(x.shape[1:]) if isinstance(x, Tensor) else None

    def batches(self, start: int = 0) -> Iterator[Batch]:
        return self._batches(check_count("start", start, least=0))

    def _batches(self, start: int) -> Iterator[Batch]:
        order = generator(self._seed, "order")
        passed = 0
        for task, source in enumerate(self._tasks):
            for _ in range(self._epochs):
                rows = order.permutation(len(source)) if self._shuffle else np.arange(len(source))
                count = self._batches_of(source)
                for k in range(max(0, start - passed), count):
                    batch = source.take(rows[k * self.batch_size : (k + 1) * self.batch_size])
                    yield replace(batch, task=task if self._numbered else None)
                passed += count

    def _batches_of(self, source: Source) -> int:
        rows = len(source) if self._drop_last else len(source) + self.batch_size - 1
        return rows // self.batch_size

    def task_data(self, task: int) -> Batch:
        if not 0 <= task < len(self._tasks):
            raise InvalidInput(f"the stream {self.name} has the tasks 0 to {len(self._tasks) - 1}, not {task}")
        return replace(whole(self._tasks[task]), task=task if self._numbered else None)

    def iid(self, epochs: int = 1) -> ArrayStream:
        return ArrayStream(
            f"{self.name}, iid",
            [Joined(self._tasks)],
            evaluation=self.evaluation,
            n_classes=self.n_classes,
            batch_size=self.batch_size,
            seed=self._seed,
            scaling=self.scaling,
            drop_last=self._drop_last,
            epochs=epochs,
            numbered=self._numbered,
        )


def whole(source: Source) -> Batch:
    """All rows of a source, in their order."""
    return source.take(np.arange(len(source)))


def take_rows(leaf: Any, rows: Index) -> Tensor:
    """Rows of a tensor, of an array in memory or of a memory-mapped one, as a tensor of their own."""
    if isinstance(leaf, Tensor):
        return leaf[torch.from_numpy(rows)]
    return torch.from_numpy(leaf[rows])


def as_rows(tree: Any, what: str) -> Tree:
    """A tree of arrays or tensors that rows can be taken from."""
    if isinstance(tree, dict):
        return {key: as_rows(branch, what) for key, branch in tree.items()}
    if isinstance(tree, tuple):
        return tuple(as_rows(branch, what) for branch in tree)
    if isinstance(tree, Tensor):
        leaf: Any = tree.detach()
    else:
        leaf = np.asarray(tree)
        if leaf.dtype.kind not in "biufc":
            raise InvalidType(f"{what} must hold numbers, not {leaf.dtype}; encode them as numbers first")
        leaf = leaf.astype(leaf.dtype.newbyteorder("="), copy=False)
    if leaf.ndim == 0:
        raise InvalidInput(f"{what} must have the rows as its first dimension, and this has no dimension")
    return leaf


def as_targets(y: Any) -> Tensor:
    """Targets as a tensor; whole numbers become int64, the kind that losses take for classes."""
    rows = as_rows(y, "y")
    if isinstance(rows, (tuple, dict)):
        raise InvalidType("y must be one array or tensor, not a tuple or dict of them")
    targets = rows if isinstance(rows, Tensor) else torch.from_numpy(np.array(rows))
    return targets if targets.is_floating_point() or targets.is_complex() else targets.long()
