"""A stream from the user's own data, in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, NoReturn, TypeAlias

import numpy as np
import torch
from torch import Tensor

from rehearse.batch import Batch, Tree, checked_task, tree_leaves, tree_map
from rehearse.errors import InvalidInput, InvalidType
from rehearse.lab.streams.arrays import ArrayStream, Index, Rows, TaskSets, as_rows, as_targets
from rehearse.lab.streams.base import Scaling, Stream, check_count, check_scaling

Grouping: TypeAlias = Callable[[Tensor, Any], list[Index]]


def from_arrays(
    x: Any,
    y: Any,
    *,
    by: Literal["class", "order"] | None = None,
    tasks: Any = None,
    n_tasks: int | None = None,
    class_order: Sequence[int] | None = None,
    evaluation: Mapping[str, tuple[Any, ...]] | None = None,
    batch_size: int = 10,
    seed: int = 0,
    shuffle: bool | None = None,
    drop_last: bool = False,
    scaling: Scaling = "unit",
    name: str = "arrays",
) -> ArrayStream:
    """A stream over arrays or tensors.

    Args:
        x: inputs, or a tuple or dict of them; the first dimension is the sample.
        y: targets.
        by: "class" (the default) makes tasks of classes, one each or as even as ``n_tasks`` allows, in
            ascending order or in that of ``class_order``. "order" keeps the rows as they come, without
            tasks, or cut into ``n_tasks`` pieces; targets may be anything, regression included.
        tasks: one whole number a row instead: the tasks come in ascending order and are numbered from 0.
        evaluation: by name ("validation", "test"), (x, y), or (x, y, tasks) where ``tasks`` is given;
            each is split into tasks by the same rule as the training rows.
        shuffle: whether ``seed`` orders the rows within a task; by default not with ``by="order"``, else yes.
        drop_last: whether a task's last incomplete batch is left out.
        batch_size: samples in a batch.
        scaling: what becomes of bytes: "unit" for [0, 1], "symmetric" for [-1, 1].
        name: what tables call the stream.
    """
    inputs, targets = _pair(x, y, "the training data")
    grouping = _grouping(targets, by, tasks, n_tasks, class_order)
    numbered = by != "order" or n_tasks is not None

    def sources(inputs: Tree, targets: Tensor, ids: Any, what: str) -> list[Rows]:
        groups = grouping(targets, ids)
        if empty := [task for task, rows in enumerate(groups) if not len(rows)]:
            raise InvalidInput(f"{what} has no row of task {empty[0]}")
        return [Rows(inputs, targets, rows) for rows in groups]

    training = sources(inputs, targets, tasks, "the training data")
    sets = {}
    for key, given in (evaluation or {}).items():
        if not isinstance(given, (tuple, list)) or len(given) != (2 if tasks is None else 3):
            wanted = "(x, y)" if tasks is None else "(x, y, tasks)"
            raise InvalidInput(f"the evaluation set {key!r} must be {wanted}")
        what = f"the evaluation set {key!r}"
        ids = None if tasks is None else given[2]
        sets[key] = TaskSets(sources(*_pair(given[0], given[1], what), ids, what), numbered)
    return ArrayStream(
        name,
        training,
        evaluation=sets,
        n_classes=_count_classes(targets),
        batch_size=batch_size,
        seed=seed,
        scaling=scaling,
        shuffle=by != "order" if shuffle is None else shuffle,
        drop_last=drop_last,
        numbered=numbered,
    )


def from_iterable(
    source: Iterable[Any] | Callable[[], Iterable[Any]],
    *,
    evaluation: Mapping[str, Any] | None = None,
    n_tasks: int | None = None,
    n_classes: int | None = None,
    length: int | None = None,
    batch_size: int | None = None,
    input_shape: tuple[int, ...] | None = None,
    scaling: Scaling = "unit",
    name: str = "iterable",
) -> Stream:
    """A stream over anything that yields (x, y), (x, y, task) or a Batch: a DataLoader, a list, a generator.

    It may be endless: nothing asks for its length. ``batches(start=k)`` skips k batches, and is exact as far as the
    iterable gives the same batches each time.

    Args:
        source: the iterable, or a function that makes it, if it can be walked only once (a generator) and is to be
            walked again.
        evaluation: by name, one (x, y) or Batch, or a list of them, one per task.
        n_tasks: how many tasks it has; like the next four, left out if it is not known.
        n_classes: how many classes it has.
        length: how many batches it has; the stream ends there.
        batch_size: samples in a batch.
        input_shape: shape of one sample.
        scaling: see `from_arrays`.
        name: what tables call the stream.
    """
    return _IterableStream(
        name=name,
        source=source,
        evaluation={key: _evaluation_sets(key, given) for key, given in (evaluation or {}).items()},
        n_tasks=n_tasks,
        n_classes=n_classes,
        length=length,
        batch_size=batch_size,
        input_shape=input_shape,
        scaling=scaling,
    )


@dataclass
class _IterableStream(Stream):
    """Whatever an iterable yields, as batches; see ``from_iterable``."""

    name: str
    source: Iterable[Any] | Callable[[], Iterable[Any]]
    evaluation: Mapping[str, Sequence[Batch]]
    n_tasks: int | None
    n_classes: int | None
    length: int | None
    batch_size: int | None
    input_shape: tuple[int, ...] | None
    scaling: Scaling
    spent: bool = False

    def __post_init__(self) -> None:
        if not callable(self.source) and not isinstance(self.source, Iterable):
            wanted = "an iterable, or a function that makes one"
            raise InvalidType(f"a stream needs {wanted}, not {type(self.source).__name__}")
        for what, least in {"n_tasks": 1, "n_classes": 1, "batch_size": 1, "length": 0}.items():
            if getattr(self, what) is not None:
                setattr(self, what, check_count(what, getattr(self, what), least))
        check_scaling(self.scaling)

    def batches(self, start: int = 0) -> Iterator[Batch]:
        start = check_count("start", start, least=0)
        if isinstance(self.source, Iterator):
            if self.spent:
                once = f"the stream {self.name} stands on an iterator, which can be walked once"
                raise InvalidInput(f"{once}; give a function that makes a new one")
            self.spent = True
        items = self.source if isinstance(self.source, Iterable) else self.source()
        # The skipped items are only walked over, not looked at.
        return (as_batch(item) for item in islice(items, start, self.length))

    def task_data(self, task: int) -> NoReturn:
        raise InvalidInput(f"the stream {self.name} passes by: it cannot give all data of task {task}; use from_arrays")

    def iid(self, epochs: int = 1) -> NoReturn:
        raise InvalidInput(f"the stream {self.name} passes by and cannot be shuffled; use from_arrays")


def as_batch(item: Any) -> Batch:
    """A batch from what an iterable yields."""
    if isinstance(item, Batch):
        return item
    if not isinstance(item, (tuple, list)) or len(item) not in (2, 3):
        raise InvalidType(f"a stream yields (x, y), (x, y, task) or a Batch, and this is {type(item).__name__}")
    x = tree_map(_as_tensor, as_rows(_lists_as_tuples(item[0]), "x"))
    y = as_targets(item[1])
    _check_rows(x, y, "a batch")
    return Batch(x, y, task=checked_task(item[2], len(y)) if len(item) == 3 else None)


def _lists_as_tuples(tree: Any) -> Any:
    """Loaders turn tuples of inputs into lists; a list of numbers is an array and stays."""
    if isinstance(tree, (list, tuple)) and any(isinstance(part, (Tensor, np.ndarray, dict, list)) for part in tree):
        return tuple(_lists_as_tuples(part) for part in tree)
    if isinstance(tree, dict):
        return {key: _lists_as_tuples(branch) for key, branch in tree.items()}
    return tree


def _as_tensor(leaf: Any) -> Tensor:
    return leaf if isinstance(leaf, Tensor) else torch.from_numpy(np.array(leaf))


def _evaluation_sets(name: str, given: Any) -> list[Batch]:
    sets = given if isinstance(given, list) else [given]
    try:
        return [as_batch(one) for one in sets]
    except InvalidType as problem:
        raise InvalidType(f"the evaluation set {name!r}: {problem}") from problem


def _pair(x: Any, y: Any, what: str) -> tuple[Tree, Tensor]:
    inputs, targets = as_rows(x, "x"), as_targets(y)
    _check_rows(inputs, targets, what)
    return inputs, targets


def _check_rows(x: Tree, y: Tensor, what: str) -> None:
    if not len(y):
        raise InvalidInput(f"{what} has no rows")
    for leaf in tree_leaves(x):
        if len(leaf) != len(y):
            raise InvalidInput(f"{what} has {len(leaf)} rows of inputs and {len(y)} of targets")


def _count_classes(y: Tensor) -> int | None:
    is_class = y.ndim == 1 and not y.is_floating_point() and not y.is_complex() and int(y.min()) >= 0
    return int(y.max()) + 1 if is_class else None


def _grouping(
    y: Tensor, by: str | None, tasks: Any, n_tasks: int | None, class_order: Sequence[int] | None
) -> Grouping:
    """How rows are told apart: a function from (targets, task ids) to the rows of each task."""
    if tasks is not None:
        if by is not None or n_tasks is not None or class_order is not None:
            raise InvalidInput("tasks say already which row is of which task: leave out by, n_tasks and class_order")
        return _by_ids(np.unique(_task_ids(tasks, len(y))))
    if by == "order":
        if class_order is not None:
            raise InvalidInput("class_order goes with by='class', not with by='order'")
        count = 1 if n_tasks is None else check_count("n_tasks", n_tasks)
        return lambda y, _: np.array_split(np.arange(len(y)), count)
    if by not in (None, "class"):
        raise InvalidInput(f"by must be 'class' or 'order', not {by!r}; task ids go to tasks=")
    if _count_classes(y) is None:
        raise InvalidInput("by='class' needs one whole number from 0 on as the target of each row; try by='order'")
    return _by_class(y, n_tasks, class_order)


def _by_class(y: Tensor, n_tasks: int | None, class_order: Sequence[int] | None) -> Grouping:
    present = np.unique(y.numpy(force=True))
    classes = present if class_order is None else np.asarray(class_order)
    if not np.array_equal(np.sort(classes), present):
        raise InvalidInput(f"class_order must name every class of the data once: {present.tolist()}")
    count = len(classes) if n_tasks is None else check_count("n_tasks", n_tasks)
    if count > len(classes):
        raise InvalidInput(f"{len(classes)} classes do not make {count} tasks")
    groups = np.array_split(classes, count)

    def rows_of_tasks(y: Tensor, _: Any) -> list[Index]:
        labels = y.numpy(force=True)
        if unknown := np.setdiff1d(labels, classes).tolist():
            raise InvalidInput(f"an evaluation set has classes that the training data has not: {unknown}")
        return [np.flatnonzero(np.isin(labels, group)) for group in groups]

    return rows_of_tasks


def _by_ids(known: Index) -> Grouping:
    def rows_of_tasks(y: Tensor, tasks: Any) -> list[Index]:
        ids = _task_ids(tasks, len(y))
        if unknown := np.setdiff1d(ids, known).tolist():
            raise InvalidInput(f"an evaluation set has tasks that the training data has not: {unknown}")
        return [np.flatnonzero(ids == one) for one in known]

    return rows_of_tasks


def _task_ids(tasks: Any, rows: int) -> Index:
    ids = tasks.numpy(force=True) if isinstance(tasks, Tensor) else np.asarray(tasks)
    if ids.dtype.kind not in "iu":
        raise InvalidType(f"tasks must be whole numbers, not {ids.dtype}")
    if ids.shape != (rows,):
        raise InvalidInput(f"tasks must be one number a row: {ids.shape} for {rows} rows")
    return ids.astype(np.int64)
