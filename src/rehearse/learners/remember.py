"""Fill a memory from data that the model already knows, without training on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..batch import Batch, checked_batch, checked_task
from ..errors import InvalidInput, InvalidType
from ..losses import to_remember
from ..memory.ids import ID, as_ids

if TYPE_CHECKING:
    from .base import Learner


def remember(learner: Learner, data: Iterable[Any], limit: int | None = None) -> int:
    """Offer batches to the learner's memory and say how many rows they had; nothing is learned from them.

    ``data`` gives ``(x, y)``, ``(x, y, task)`` or a `Batch` (with columns such as ``id``), and is never asked for its
    length. With ``limit`` no more than that many rows are taken from it. Every batch passes the model once, in eval
    mode: one that could not be replayed later is refused now, and those before it stay.
    """
    if learner.memory is None:
        raise InvalidInput(f"{type(learner).__name__} keeps no memory; there is nothing to fill")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise InvalidInput(f"limit is {limit!r}; it must be a positive number of rows, or None for all")
    rows = 0
    for item in data:
        batch = _as_batch(item)
        if limit is not None and rows + len(batch) > limit:
            batch = batch.take(torch.arange(limit - rows))
        learner._take_in(batch)
        learner._note_kind(batch)
        rows += len(batch)
        if rows == limit:
            break
    return rows


def take_in(learner: Learner, batch: Batch) -> None:
    """Keep these rows, with what the loss wants remembered of them; refuse those that could not be replayed."""
    assert learner.memory is not None
    scores = learner.scores(batch.x)
    losses = learner.loss(scores, batch.to(scores.device), False)
    if not bool(losses.isfinite().all()):
        raise InvalidInput("the loss of some of these rows is not finite; they cannot be replayed")
    wanted = {name: column for name, column in to_remember(learner.loss, scores).items() if name not in batch.columns}
    learner.memory.keep(batch, learner.memory.check(batch, **wanted))


def _as_batch(item: Any) -> Batch:
    if isinstance(item, Batch):
        checked = checked_batch(item.x, item.y)
        columns = {name: as_ids(values) if name == ID else values for name, values in item.columns.items()}
        return Batch(checked.x, checked.y, _tasks(item.task, len(checked)), columns=columns)
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise InvalidType(f"the data must give (x, y), (x, y, task) or a Batch; it gave a {type(item).__name__}")
    return checked_batch(*item)


def _tasks(task: Any, rows: int) -> Tensor | int | None:
    """Rows that come out of a memory say −1 where their task is unknown."""
    recalled = isinstance(task, Tensor) and task.dtype == torch.int64 and task.shape == (rows,) and task.min() == -1
    return task if recalled else checked_task(task, rows)
