"""Which samples are meant: their ids (integers, or strings of which only a hash is stored), slots, or a predicate."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch, as_tensor
from ..errors import InvalidInput, InvalidType
from .index import Slots

ID: Final = "id"  # the name of the column
NO_ID: Final = -(2**63)


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
    """Return ids to look for; samples that have none cannot be meant."""
    ids = as_ids(values)
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
