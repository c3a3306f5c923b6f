"""Row ids: whole numbers, or strings known by their hash alone."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInput, InvalidType


def as_ids(values: Any) -> Tensor:
    """Ids as the memory keeps them: whole numbers as they are, strings as 64 bits of their BLAKE2 hash.

    The string itself is not kept. Two of a million strings share a hash with probability 3 · 10⁻⁸.
    """
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidType(f"ids are whole numbers or strings, one a row; this is {values!r}")
    return torch.tensor([_as_id(value) for value in values], dtype=torch.int64)


def _as_id(value: Any) -> int:
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
