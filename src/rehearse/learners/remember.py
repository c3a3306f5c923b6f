"""Fill a memory from data that the model already knows, without training on it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from ..batch import Batch, checked_batch
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
        scores = learner.scores(batch.x)
        losses = learner.loss(scores, batch.to(scores.device), False)
        if not bool(losses.isfinite().all()):
            raise InvalidInput("the loss of some of these rows is not finite; they cannot be replayed")
        known = {**to_remember(learner.loss, scores), **batch.columns}
        learner.memory.add(batch.x, batch.y, task=batch.task, **known)
        learner._note_kind(batch)
        rows += len(batch)
        if rows == limit:
            break
    return rows


def _as_batch(item: Any) -> Batch:
    if isinstance(item, Batch):
        checked = checked_batch(item.x, item.y, item.task)
        columns = {name: as_ids(values) if name == ID else values for name, values in item.columns.items()}
        return Batch(checked.x, checked.y, checked.task, columns=columns)
    if not isinstance(item, tuple | list) or len(item) not in (2, 3):
        raise InvalidType(f"the data must give (x, y), (x, y, task) or a Batch; it gave a {type(item).__name__}")
    return checked_batch(*item)
