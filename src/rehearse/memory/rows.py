"""The stored samples themselves: preallocated columns, one row per slot, in the dtype that came."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from torch import Tensor

from ..batch import Tree, pick, tree_leaves, tree_map
from ..errors import InvalidInput
from ..undo import Restore
from .changes import Changes
from .ids import ID, no_ids

if TYPE_CHECKING:
    from .mapped import MappedFile

NARROW: Final = (
    "grow the head before the first sample is stored, or put a new learner with another memory around the model and "
    "fill that one: new.remember([Batch(held.x, held.y, held.task)]) with held = old.memory.all()"
)


class Rows:
    """Columns of ``capacity`` rows: the inputs (a tree of tensors) and any number of named tensors.

    A column is laid out when the first samples arrive and keeps their dtype and shape. Pages that were never written
    take no room, so a large capacity costs what it holds. A named column with a list of floats per sample may become
    wider (the logits of a head that has grown): earlier samples then have NaN there. With a ``file`` the columns are
    views of it, and keep their width.
    """

    def __init__(self, capacity: int, file: MappedFile | None = None) -> None:
        """Start without columns."""
        self.capacity, self.file = capacity, file
        self.x: Tree | None = None
        self.columns: dict[str, Tensor] = {}

    def leaves(self) -> list[Tensor]:
        """Return all columns, those of the inputs first."""
        return [] if self.x is None else [*tree_leaves(self.x), *self.columns.values()]

    def check(self, x: Tree, columns: dict[str, Tensor]) -> None:
        """Refuse samples that do not look like the stored ones."""
        if self.x is None:
            if self.file is not None:
                self.file.check_start()
            return
        self.check_inputs(x)
        if columns.keys() != self.columns.keys():  # ids alone may come later
            if columns.keys() != self.columns.keys() | {ID}:
                raise InvalidInput(
                    f"the memory has the columns {sorted(self.columns)}, this batch has {sorted(columns)}; every "
                    "sample needs the same ones"
                )
            if self.file is not None:
                raise InvalidInput(
                    f"{self.file.path} was laid out for samples without ids, and a file keeps its columns: give ids "
                    "from the first batch on (None for samples that have none), or start another file"
                )
        for name in self.columns:
            self.check_column(name, columns[name])
        self.check_widths(columns)

    def check_column(self, name: str, column: Tensor) -> None:
        """Refuse a column that does not look like the stored one."""
        if not _is_wider(column, self.columns[name]):
            _check_leaf(column, self.columns[name], f"column {name!r}")

    def check_widths(self, columns: dict[str, Tensor]) -> None:
        """Refuse columns that have become wider, where they cannot: in a file."""
        for name, column in columns.items():
            if self.file is not None and name in self.columns and _is_wider(column, self.columns[name]):
                raise InvalidInput(
                    f"column {name!r} has {column.shape[1]} entries per sample now, {self.file.path} was laid out for "
                    f"{self.columns[name].shape[1]}, and a file keeps its columns: {NARROW}"
                )

    def check_inputs(self, x: Tree) -> None:
        """Refuse inputs that do not look like the stored ones."""
        _check_tree(x, self.x, "inputs")

    def allocate(self, x: Tree, columns: dict[str, Tensor]) -> None:
        """Lay out the columns for samples that look like these."""
        if self.file is not None:
            self.x, self.columns = self.file.start(x, columns)
        else:
            self.x = tree_map(self._zeros_like, x)
            self.columns = {name: self._zeros_like(column) for name, column in columns.items()}

    def write(self, slots: Tensor, x: Tree, columns: dict[str, Tensor], changes: Changes | None = None) -> None:
        """Write samples, after noting what they overwrite."""
        self._note(slots, changes)
        with nullcontext() if self.file is None else self.file.overwriting(slots.numpy()):
            # By key, not by position: two dicts of the same inputs may name them in another order.
            tree_map(lambda held, leaf: held.index_copy_(0, slots, leaf.to(held.device)), self.x, x)
            for name, column in columns.items():
                if name not in self.columns:
                    self.columns[name] = no_ids(self.capacity)  # earlier samples had none
                if _is_wider(column, self.columns[name]):
                    self.columns[name] = _widened(self.columns[name], column.shape[1])
                held = self.columns[name]
                held.index_copy_(0, slots, column.to(held.device))

    def erase(self, slots: Tensor, changes: Changes | None = None) -> None:
        """Overwrite samples with zeros."""
        self._note(slots, changes)
        if self.file is not None:
            self.file.erase(slots.numpy())
            return
        for held in self.leaves():
            held[slots] = torch.zeros((), dtype=held.dtype)

    def snapshot(self) -> Restore:
        """Return a function that restores the columns, except for entries that `Changes` notes."""
        x, columns, file = self.x, dict(self.columns), self.file
        is_open = file is not None and file.is_open

        def restore() -> None:
            self.x, self.columns = x, columns
            if file is not None and file.is_open and not is_open:
                file.discard()

        return restore

    def _note(self, slots: Tensor, changes: Changes | None) -> None:
        if self.file is not None:
            self.file.check_process()
        if changes is not None:
            for held in self.leaves():
                changes.note(held, slots)
            if self.file is not None:
                changes.note(self.file.digests, slots.numpy())

    def read(self, slots: Tensor) -> tuple[Tree, dict[str, Tensor]]:
        """Return the samples at these slots, all columns."""
        if self.file is not None:
            self.file.passed(len(slots))
        columns = {name: pick(column, slots) for name, column in self.columns.items()}
        return tree_map(lambda held: pick(held, slots), self.x), columns

    def _zeros_like(self, samples: Tensor) -> Tensor:
        """Return a column of zeros; numpy's take no room before they are written, torch's do."""
        shape = (self.capacity, *samples.shape[1:])
        numbers = math.prod(shape)
        raw = np.zeros((numbers + 1) * samples.element_size(), dtype=np.uint8)  # torch cannot view no bytes
        return torch.from_numpy(raw).view(samples.dtype)[:numbers].view(shape)


def _check_tree(x: Tree, held: Tree, where: str) -> None:
    if isinstance(held, Tensor) and isinstance(x, Tensor):
        _check_leaf(x, held, where)
    elif type(x) is not type(held) or _keys(x) != _keys(held):
        form = "one tensor" if isinstance(held, Tensor) else f"a {type(held).__name__} with the keys {_keys(held)}"
        raise InvalidInput(f"the memory holds {where} as {form}; this batch has another form")
    else:
        for key in _keys(held):
            _check_tree(x[key], held[key], f"{where}[{key!r}]")


def _keys(tree: Tree) -> list[Any]:
    return sorted(tree) if isinstance(tree, dict) else list(range(len(tree)))


def _check_leaf(samples: Tensor, held: Tensor, where: str) -> None:
    if samples.shape[1:] != held.shape[1:]:
        shapes = tuple(samples.shape[1:]), tuple(held.shape[1:])
        raise InvalidInput(f"{where} of this batch have shape {shapes[0]} per sample, those before had {shapes[1]}")
    if samples.dtype != held.dtype:
        raise InvalidInput(f"{where} of this batch are {samples.dtype}, those before were {held.dtype}; convert them")


def _is_wider(samples: Tensor, held: Tensor) -> bool:
    lists_of_floats = samples.ndim == held.ndim == 2 and samples.dtype == held.dtype and samples.is_floating_point()
    return lists_of_floats and samples.shape[1] > held.shape[1]


def _widened(held: Tensor, width: int) -> Tensor:
    return torch.cat([held, held.new_full((len(held), width - held.shape[1]), torch.nan)], dim=1)
