"""What a memory overwrites, so that it can be undone in the time that the change took."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor


class Changes:
    """Old values with their places, newest last. They are noted before the places are overwritten."""

    def __init__(self) -> None:
        """Start empty."""
        self._undo: list[Callable[[], None]] = []

    def note(self, values: Any, where: Any) -> None:
        """Note the present entries of a tensor or a numpy array."""
        before = values[where].clone() if isinstance(values, Tensor) else values[where].copy()
        self._undo.append(partial(values.__setitem__, where, before))

    def note_list(self, values: array[int], *positions: int) -> None:
        """Note the length of a list and its entries at some positions; it may then grow, or shrink by one."""
        self._undo.append(partial(_restore_list, values, len(values), {at: values[at] for at in positions}))

    def roll_back(self) -> None:
        """Write everything back."""
        while self._undo:
            self._undo.pop()()


def _restore_list(values: array[int], length: int, entries: dict[int, int]) -> None:
    values.extend([0] * (length - len(values)))
    del values[length:]
    for at, entry in entries.items():
        values[at] = entry
