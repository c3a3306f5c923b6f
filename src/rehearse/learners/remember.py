"""Data that a model already knows, as batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..batch import Batch, Tree, checked_batch, checked_task, given
from ..checks import check_limit
from ..errors import InvalidType
from ..memory.columns import checked_samples


def batches(
    data: Iterable[Any], limit: int | None = None, collated: Callable[..., tuple[Tree, ...]] = given
) -> Iterator[Batch]:
    """Yield checked batches, of no more than ``limit`` samples in all.

    Args:
        data: Yields ``(x, y)``, ``(x, y, task)`` or a `Batch`; it is never asked for its length.
        limit: The largest number of samples, or None for all.
        collated: Makes inputs and targets tensors; see `Padding`.

    Raises:
        InvalidInput: If ``limit`` is not a positive number, or a batch is not valid.
        InvalidType: If ``data`` yields something else.
    """
    check_limit(limit=limit)
    if isinstance(data, Tensor) or not isinstance(data, Iterable):
        raise InvalidType(f"the data must yield (x, y), (x, y, task) or a Batch; this is {data!r:.80}")
    count = 0
    for item in data:
        batch = _as_batch(item, collated)
        if limit is not None and count + len(batch) > limit:
            batch = batch.take(torch.arange(limit - count))
        yield batch
        count += len(batch)
        if count == limit:
            return


def _as_batch(item: Any, collated: Callable[..., tuple[Tree, ...]]) -> Batch:
    if isinstance(item, Batch):
        checked = checked_samples(item.x, item.y, None, item.columns, collated)
        return replace(checked, task=_tasks(item.task, len(checked)))
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise InvalidType(f"the data must yield (x, y), (x, y, task) or a Batch; it yielded a {type(item).__name__}")
    return checked_batch(*collated(*item[:2]), *item[2:])


def _tasks(task: Any, samples: int) -> Tensor | int | None:
    """Return the tasks; samples that come out of a memory have −1 where their task is unknown."""
    stored = isinstance(task, Tensor) and task.dtype == torch.int64 and task.shape == (samples,) and task.min() == -1
    return task if stored else checked_task(task, samples)
