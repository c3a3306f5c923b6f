"""Forms: what a value that was read from a file must look like."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .errors import CheckpointError

Form = Any


def check(value: Any, form: Form, where: str) -> None:
    """Refuse a value of another form.

    Args:
        value: Tensors and plain values.
        form: A tensor (of this dtype and shape), a dict (with these keys), a list or tuple (of this type and length), a
            type (exactly this one), None, or a function that says whether it accepts the value.
        where: What errors call the value.

    Raises:
        CheckpointError: If the value is of another form.
    """
    if isinstance(form, Tensor):
        right = isinstance(value, Tensor) and (value.dtype, value.shape) == (form.dtype, form.shape)
    elif isinstance(form, dict):
        right = type(value) is dict and value.keys() == form.keys()
    elif isinstance(form, list | tuple):
        right = type(value) is type(form) and len(value) == len(form)
    elif isinstance(form, type):
        right = type(value) is form
    else:
        right = form(value) if callable(form) else value is form
    if not right:
        if isinstance(form, dict) and type(value) is dict:
            names = ", ".join(map(repr, form.keys() ^ value.keys()))
            raise CheckpointError(f"{where} has entries missing or added ({names}): another version may have saved it")
        found = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.60}"
        raise CheckpointError(f"{where} does not fit: {found}")
    for key in form if isinstance(form, dict) else range(len(form)) if isinstance(form, list | tuple) else ():
        check(value[key], form[key], f"{where}[{key!r}]")


def anything(value: Any) -> bool:
    """Accept every value."""
    return True


def count(value: Any) -> bool:
    """Accept whole numbers, 0 or more."""
    return type(value) is int and 0 <= value < 2**53


def optional(form: Form) -> Callable[[Any], bool]:
    """Accept None, or the form."""
    return lambda value: value is None or fits(value, form)


def each(form: Form) -> Callable[[Any], bool]:
    """Accept lists of any length of this form."""
    return lambda value: type(value) is list and all(fits(part, form) for part in value)


def numbers(dtype: torch.dtype, low: int, high: int) -> Callable[[Any], bool]:
    """Accept lists of numbers, as a tensor, from ``low`` to below ``high``."""

    def accept(value: Any) -> bool:
        right = isinstance(value, Tensor) and value.dtype == dtype and value.ndim == 1
        return right and bool(((value >= low) & (value < high)).all())

    return accept


def alike(tensors: Mapping[str, Tensor]) -> dict[str, Form]:
    """Accept tensors with these names, dtypes and shapes; their length may be that of before a head has grown."""

    def accept(own: Tensor, value: Any) -> bool:
        right = isinstance(value, Tensor) and value.dtype == own.dtype
        return right and value.ndim == own.ndim and value.shape[1:] == own.shape[1:]

    return {name: partial(accept, own) for name, own in tensors.items()}


def fits(value: Any, form: Form) -> bool:
    """Return whether a value is of a form."""
    try:
        check(value, form, "")
    except CheckpointError:
        return False
    return True
