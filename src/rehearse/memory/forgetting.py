"""Which rows are meant when some are to be forgotten."""

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


def matching(rows: Batch, ids: Tensor | None, predicate: Callable[[Batch], Tensor] | None) -> Tensor:
    """Which of the rows go by these ids, or answer to the predicate."""
    if ids is not None:
        if ID not in rows.columns:
            raise InvalidInput(
                "the rows have no ids; give them with the rows: observe(x, y, id=...), add(x, y, id=...)"
            )
        return torch.isin(rows.columns[ID], ids)
    assert predicate is not None
    answer = torch.as_tensor(predicate(rows))
    if answer.dtype != torch.bool or answer.shape != (len(rows),):
        raise InvalidInput("the predicate must answer with one boolean a row")
    return answer.cpu()


def slot_numbers(slots: Any) -> Slots:
    """Slots as whole numbers, in any order."""
    if not isinstance(slots, Iterable):
        raise InvalidType(f"slots are whole numbers in a list; this is {slots!r}")
    numbers = as_tensor(slots if isinstance(slots, Tensor | np.ndarray) else list(slots), "slots")
    if numbers.ndim != 1 or (len(numbers) and (numbers.is_floating_point() or numbers.dtype == torch.bool)):
        raise InvalidInput(
            f"slots are whole numbers in a list; these are {numbers.dtype} of shape {tuple(numbers.shape)}"
        )
    return numbers.cpu().numpy().astype(np.int64)
