"""Which samples are meant when some are to be forgotten."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch, as_tensor
from ..errors import InvalidInput, InvalidType
from .ids import ID
from .index import Slots


def matching(samples: Batch, ids: Tensor | None, predicate: Callable[[Batch], Tensor] | None) -> Tensor:
    """Return which of the samples have one of these ids, or satisfy the predicate."""
    if ids is not None:
        if ID not in samples.columns:
            raise InvalidInput("the samples have no ids; give them as they come: observe(x, y, id=...)")
        return torch.isin(samples.columns[ID], ids)
    assert predicate is not None
    answer = torch.as_tensor(predicate(samples))
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
