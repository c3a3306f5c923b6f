"""What a memory overwrites, so that it can be undone in the time that the change took."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor


class Notes(list[Callable[[], object]]):
    """Calls that undo what was done, newest last."""

    def roll_back(self) -> None:
        """Undo everything."""
        while self:
            self.pop()()


class Changes:
    """Where a memory and its parts note what they are about to overwrite; nothing is kept while nobody asked for it."""

    def __init__(self) -> None:
        """Keep nothing."""
        self._notes: Callable[[], Notes | None] = lambda: None

    def start(self) -> Notes:
        """Return new notes, which are taken as long as they live; earlier ones are not continued."""
        notes = Notes()
        self._notes = weakref.ref(notes)
        return notes

    def note(self, values: Any, where: Any) -> None:
        """Note the present entries of a tensor or a numpy array."""
        if self._notes() is not None:
            before = values[where].clone() if isinstance(values, Tensor) else values[where].copy()
            self.add(values.__setitem__, where, before)

    def add(self, undo: Callable[..., object], *arguments: Any) -> None:
        """Note a call that undoes what comes next."""
        notes = self._notes()
        if notes is not None:
            notes.append(partial(undo, *arguments))

    def __reduce__(self) -> tuple[type[Changes], tuple[()]]:
        """A copy has no notes."""
        return Changes, ()


def attributes(part: object, *copied: str) -> Callable[[], object]:
    """Return a function that restores all attributes of an object, and what is inside of the ones named."""
    return partial(vars(part).update, vars(part) | {name: copy.copy(getattr(part, name)) for name in copied})
