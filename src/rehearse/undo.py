"""All or nothing: the only undo of the library."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, repeat
from typing import Any, Protocol

import torch

Restore = Callable[[], object]
Operations = Iterable[object]
"""A lazy sequence of calls into C, such as ``map(torch.Tensor.sub_, parameters, updates)``: iterating it runs them."""
Commit = Callable[..., None]


class Undoable(Protocol):
    """An object that can return to an earlier state.

    What it saves for that after `snapshot` is in a list called ``_saved``, which the commit clears.
    """

    def snapshot(self) -> Restore:
        """Return a function that restores the present state."""


run: Callable[[Operations], object] = partial(deque, maxlen=0)
"""Run all operations in one call into C."""


def assign(target: object, **values: Any) -> Operations:
    """Return the operations that set attributes of an object."""
    return map(setattr, repeat(target), values, values.values())


@contextlib.contextmanager
def all_or_nothing(*parts: Undoable) -> Iterator[Commit]:
    """Restore all parts if the block raises, `KeyboardInterrupt` included.

    The block ends by calling the yielded function with the operations that complete its work. That is the commit
    point: the operations run, and the undo is discarded, in one call into C. Python handles signals between bytecode
    instructions only, so an exception comes before the whole of it or after the whole of it.

    Args:
        parts: The objects to restore, the last one first.
    """
    restores = [part.snapshot() for part in parts]
    saved = [getattr(part, "_saved", restores) for part in parts]

    def commit(*operations: Operations) -> None:
        run(chain(*operations, map(list.clear, [restores, *saved])))

    try:
        with torch.inference_mode(False):  # what is kept must be trained and overwritten later
            yield commit
    except BaseException:
        for restore in reversed(restores):
            restore()
        raise


@contextlib.contextmanager
def restoring(restore: Restore) -> Iterator[None]:
    """Call ``restore`` after the block, and once more if it was interrupted."""
    try:
        try:
            yield
        finally:
            restore()
    except BaseException:
        restore()
        raise
