"""Class-incremental streams: the classes of a data set, some of them per task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rehearse.errors import InvalidInput
from rehearse.lab.streams.arrays import ArrayStream, Index, Rows, Source, TaskSets
from rehearse.lab.streams.base import check_count, generator
from rehearse.lab.streams.datasets import Dataset


def split_stream(
    name: str, dataset: Dataset, *, n_tasks: int, class_order: Sequence[int] | None, **more: Any
) -> ArrayStream:
    """Tasks of as many classes each, in the order of ``class_order``; the labels stay what they are.

    ``more`` is of `task_stream`.
    """
    if dataset.n_classes % n_tasks:
        fitting = [str(d) for d in range(1, dataset.n_classes + 1) if dataset.n_classes % d == 0]
        said = f"the {dataset.n_classes} classes of {name} do not divide into {n_tasks} tasks"
        raise InvalidInput(f"{said}; take {', '.join(fitting)}")
    classes = np.split(check_order(class_order, dataset.n_classes), n_tasks)
    return task_stream(name, dataset, lambda rows: [rows[np.isin(dataset.y[rows], group)] for group in classes], **more)


def task_stream(
    name: str,
    dataset: Dataset,
    per_task: Callable[[Index], list[Index]],
    *,
    validation: float,
    samples_per_task: int | None,
    split_seed: int,
    look: Callable[[Rows, int], Source] = lambda rows, _: rows,
    **more: Any,
) -> ArrayStream:
    """A stream whose tasks have the rows that ``per_task`` gives them of all.

    Of each class the fraction ``validation`` is set aside, and of each task's remaining rows exactly
    ``samples_per_task`` are drawn (None takes all). Both come from ``split_seed``, so that runs with
    different seeds see the same rows in another order. ``look`` is how a task, by its number, shows its rows;
    ``more`` is of the stream: batch_size, scaling, seed.
    """
    train, held_out = hold_out(dataset, validation, split_seed)
    subset, labels = generator(split_seed, "subset"), torch.from_numpy(dataset.y)

    def sources(groups: Sequence[Index]) -> list[Source]:
        return [look(Rows(dataset.x, labels, group), task) for task, group in enumerate(groups)]

    return ArrayStream(
        name,
        sources([draw(pool, samples_per_task, subset, name) for pool in per_task(train)]),
        evaluation={
            "validation": TaskSets(sources(per_task(held_out))),
            "test": TaskSets(sources(per_task(dataset.test))),
        },
        n_classes=dataset.n_classes,
        **more,
    )


def hold_out(dataset: Dataset, fraction: float, split_seed: int) -> tuple[Index, Index]:
    """The training rows in two: (training, validation), the latter a fraction of every class.

    Class by class, so that the same images are held out whatever classes make a task.
    """
    chance = generator(split_seed, "split")
    held_out = []
    for label in range(dataset.n_classes):
        rows = dataset.train[dataset.y[dataset.train] == label]
        held_out.append(chance.permutation(rows)[: round(fraction * len(rows))])
    validation = np.sort(np.concatenate(held_out))
    return np.setdiff1d(dataset.train, validation), validation


def draw(pool: Index, count: int | None, chance: np.random.Generator, name: str) -> Index:
    """Exactly ``count`` rows of the pool; fewer of them are the first of more."""
    if count is None:
        return pool
    if check_count("samples_per_task", count) > len(pool):
        raise InvalidInput(f"a task of {name} has {len(pool):,} training rows; samples_per_task {count:,} is more")
    return np.sort(chance.permutation(pool)[:count])


def check_order(class_order: Sequence[int] | None, n_classes: int) -> Index:
    """The order of the classes, which must name every class once."""
    if class_order is None:
        return np.arange(n_classes)
    order = np.asarray(class_order)
    if order.dtype.kind not in "iu" or not np.array_equal(np.sort(order, axis=None), np.arange(n_classes)):
        raise InvalidInput(f"class_order must name every class from 0 to {n_classes - 1} once, not {class_order!r}")
    return order.astype(np.int64)
