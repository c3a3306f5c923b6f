"""Columns: what stands beside the targets of samples, from the user and from the loss; ids are one of them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import blake2b
from numbers import Integral
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ..batch import WEIGHT, Batch, Tree, as_tensor, checked_batch, given
from ..errors import InvalidInput, InvalidType
from .index import Slots

ID: Final = "id"  # the name of the column
NO_ID: Final = -(2**63)
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


def as_ids(values: Any) -> Tensor:
    """Return ids as the memory stores them: integers as they are, strings as 64 bits of their BLAKE2 hash.

    The string itself is not stored. Two of a million strings share a hash with probability 3 · 10⁻⁸. None (stored as
    −2⁶³) stands for a sample without an id, which `forget` cannot name.
    """
    if isinstance(values, Tensor) and values.dtype == torch.int64:
        return values.detach().cpu()
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidType(f"ids must be integers or strings, one per sample; this is {values!r}")
    return torch.tensor([_as_id(value) for value in values], dtype=torch.int64)


def one_id_per_sample(values: Any, samples: int) -> Tensor:
    """Return ids as the memory stores them, or refuse another number of them."""
    ids = as_ids(values)
    if ids.shape != (samples,):
        raise InvalidInput(f"ids have shape {tuple(ids.shape)} for {samples} samples; give one for each, or None")
    return ids


def named_ids(values: Any) -> Tensor:
    """Return ids to look for, given as a list or a single one; samples that have none cannot be meant."""
    ids = as_ids([values] if isinstance(values, str | Integral) else values)
    if bool((ids == NO_ID).any()):
        raise InvalidInput("None names no sample; to remove samples that have no id, use a predicate or slots")
    return ids


def no_ids(samples: int) -> Tensor:
    """Return the column of samples that have no id."""
    return torch.full((samples,), NO_ID)


def matching(samples: Batch, ids: Tensor | None, predicate: Callable[[Batch], Tensor] | None) -> Tensor:
    """Return which of the samples have one of these ids, or satisfy the predicate."""
    if ids is not None:
        if ID not in samples.columns:
            raise InvalidInput("the samples have no ids; give them as they come: observe(x, y, id=...)")
        return torch.isin(samples.columns[ID], ids)
    if not callable(predicate):
        raise InvalidType(f"the predicate must be a function of a Batch; this is {predicate!r:.80}")
    answer = as_tensor(predicate(samples), "what the predicate returned")
    if answer.dtype != torch.bool or answer.shape != (len(samples),):
        raise InvalidInput("the predicate must return one boolean per sample")
    return answer.cpu()


def slot_numbers(slots: Any) -> Slots:
    """Return slots as an array of integers, in the order given."""
    if not isinstance(slots, Iterable):
        raise InvalidType(f"slots must be a list of integers; this is {slots!r}")
    numbers = as_tensor(slots if isinstance(slots, Tensor | np.ndarray) else list(slots), "slots")
    if numbers.ndim != 1 or (len(numbers) and (numbers.is_floating_point() or numbers.dtype == torch.bool)):
        raise InvalidInput(f"slots must be a list of integers; these are {numbers.dtype} of {tuple(numbers.shape)}")
    return numbers.cpu().numpy().astype(np.int64)


def _as_id(value: Any) -> int:
    if value is None:
        return NO_ID
    if isinstance(value, str):
        return int.from_bytes(
            blake2b(value.encode(errors="surrogatepass"), digest_size=8).digest(), "little", signed=True
        )
    try:
        number = operator.index(None if isinstance(value, bool | np.bool_) else value)  # type: ignore[arg-type]
    except TypeError as problem:
        raise InvalidType(f"an id must be an integer or a string; this is {value!r}") from problem
    if not -(2**63) <= number < 2**63:
        raise InvalidInput(f"the id {number} does not fit into 64 bits; give it as a string")
    return number


CHECKS: Final = {ID: one_id_per_sample, WEIGHT: one_weight_per_sample}
OPTIONAL: Final[dict[str, Callable[[int], Tensor]]] = {ID: no_ids, WEIGHT: torch.ones}
"""Columns that some batches may lack, and what stands there then."""
