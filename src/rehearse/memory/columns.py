"""Columns: what stands beside the targets of samples, from the user and from the loss."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from ..batch import WEIGHT, Batch, Tree, as_tensor, checked_batch, given
from ..errors import InvalidInput
from .ids import ID, no_ids, one_id_per_sample

RESERVED: Final = frozenset({"x", "y", "task", "slots", "arrived", "averaged", "draw"})


def checked_samples(
    x: Tree, y: Any, task: Any, columns: Mapping[str, Any], collated: Callable[..., tuple[Tree, ...]] = given
) -> Batch:
    """Return a batch of the user's with its columns; those that are None are left out. See `checked_batch`."""
    x, y = collated(x, y)
    batch = checked_batch(x, y, task)
    named = {name: values for name, values in columns.items() if values is not None}
    return replace(batch, columns=checked_columns(named, len(batch)))


def checked_columns(columns: Mapping[str, Any], samples: int) -> dict[str, Tensor]:
    """Return columns as the memory stores them.

    Raises:
        InvalidInput: If a name is taken, or a column has another number of entries than there are samples.
    """
    found = {}
    for name, values in columns.items():
        if name in RESERVED:
            raise InvalidInput(f"the column name {name!r} is taken by the library; choose another name for yours")
        check = CHECKS.get(name)
        found[name] = column = check(values, samples) if check else as_tensor(values, f"column {name!r}")
        if column.ndim == 0 or len(column) != samples:
            raise InvalidInput(f"column {name!r} has shape {tuple(column.shape)}; the batch has {samples} samples")
    return found


def columns_to_store(loss: Any, logits: Tree) -> dict[str, Tensor]:
    """Return what a loss wants stored of samples with these logits."""
    columns = getattr(loss, "columns", None)
    return {} if columns is None else dict(columns(logits))


def one_weight_per_sample(values: Any, samples: int) -> Tensor:
    """Return sample weights as the memory stores them, or refuse them."""
    weights = as_tensor(values, "weight").float()
    if weights.shape != (samples,) or not bool(((weights >= 0) & weights.isfinite()).all()):
        raise InvalidInput(
            f"weights are finite numbers from 0 on, one for each of {samples} samples; not {values!r:.80}"
        )
    return weights


CHECKS: Final = {ID: one_id_per_sample, WEIGHT: one_weight_per_sample}
OPTIONAL: Final[dict[str, Callable[[int], Tensor]]] = {ID: no_ids, WEIGHT: torch.ones}
"""Columns that some batches may lack, and what stands there then."""
