"""Row ids: whole numbers, or strings known by their hash alone; a row may have none."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..errors import InvalidInput, InvalidType

ID: Final = "id"  # the name of the column
NO_ID: Final = -(2**63)


def as_ids(values: Any) -> Tensor:
    """Ids as the memory keeps them: whole numbers as they are, strings as 64 bits of their BLAKE2 hash.

    The string itself is not kept. Two of a million strings share a hash with probability 3 · 10⁻⁸. None (kept as
    −2⁶³) is for a row without an id, which nobody will ask for.
    """
    if isinstance(values, Tensor) and values.dtype == torch.int64:
        return values.detach().cpu()
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidType(f"ids are whole numbers or strings, one a row; this is {values!r}")
    return torch.tensor([_as_id(value) for value in values], dtype=torch.int64)


def one_id_per_sample(values: Any, rows: int) -> Tensor:
    ids = as_ids(values)
    if ids.shape != (rows,):
        raise InvalidInput(f"there are ids of shape {tuple(ids.shape)} for {rows} rows; give one for each, or None")
    return ids


def with_ids(batch: Batch, ids: Any) -> Batch:
    """Return the batch with a column of ids, if there are any."""
    return batch if ids is None else replace(batch, columns={ID: one_id_per_sample(ids, len(batch))})


def named_ids(values: Any) -> Tensor:
    """Ids to look for: rows without one cannot be meant."""
    ids = as_ids(values)
    if bool((ids == NO_ID).any()):
        raise InvalidInput("None names no row; to remove rows that have no id, use a predicate or slots")
    return ids


def no_ids(rows: int) -> Tensor:
    return torch.full((rows,), NO_ID)


def _as_id(value: Any) -> int:
    if value is None:
        return NO_ID
    if isinstance(value, str):
        return int.from_bytes(blake2b(value.encode(), digest_size=8).digest(), "little", signed=True)
    if isinstance(value, bool | np.bool_):
        raise InvalidType(f"an id is a whole number or a string, this is {value!r}")
    try:
        number = operator.index(value)
    except TypeError as problem:
        raise InvalidType(f"an id is a whole number or a string, this is {value!r}") from problem
    if not -(2**63) <= number < 2**63:
        raise InvalidInput(f"the id {number} does not fit into 64 bits; give it as a string")
    return number
