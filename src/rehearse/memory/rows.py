"""The rows themselves: columns of preallocated tensors, one entry a slot, in the dtype that came."""

from __future__ import annotations

from collections.abc import Set
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..batch import Tree, pick, tree_leaves, tree_map
from ..errors import InvalidInput
from ..undo import Restore
from .changes import Changes
from .ids import ID, no_ids

if TYPE_CHECKING:
    from .mapped import MappedFile


NARROW = (
    "grow the head before the first row is kept, or put a new learner with another memory around the model and fill "
    "that one: new.remember([Batch(rows.x, rows.y, rows.task)]) with rows = old.memory.all()"
)


class Rows:
    """Columns of ``capacity`` rows: the inputs (a tree of tensors) and any number of named tensors.

    A column is laid out when its first rows arrive and keeps their dtype and shape. Pages that were never written
    take no room, so a large capacity costs what it holds. A named column of floats with one list a row may become
    wider (the logits of a head that has grown): what earlier rows do not have of it is NaN. With a ``file`` the columns
    are views of it, and keep their width.
    """

    def __init__(self, capacity: int, file: MappedFile | None = None) -> None:
        self.capacity, self.file = capacity, file
        self.x: Tree | None = None
        self.columns: dict[str, Tensor] = {}

    @property
    def bytes_per_row(self) -> int:
        columns = [*(tree_leaves(self.x) if self.x is not None else []), *self.columns.values()]
        return sum(column[0].numel() * column.element_size() for column in columns)

    def check(self, x: Tree, columns: dict[str, Tensor]) -> None:
        """Refuse rows that do not look like those that are held."""
        if self.x is None:
            if self.file is not None:
                self.file.check_start()
            return
        self.check_inputs(x)
        if columns.keys() != self.columns.keys():
            self._check_names(columns.keys())
        for name in self.columns:
            self.check_column(name, columns[name])
        self.check_widths(columns)

    def check_column(self, name: str, column: Tensor) -> None:
        """Refuse a column that does not look like the one that is held."""
        if not _is_wider(column, self.columns[name]):
            _check_leaf(column, self.columns[name], f"column {name!r}")

    def check_widths(self, columns: dict[str, Tensor]) -> None:
        """Refuse columns that have become wider, where they cannot: in a file."""
        if self.file is None:
            return
        for name, column in columns.items():
            if name in self.columns and _is_wider(column, self.columns[name]):
                raise InvalidInput(
                    f"column {name!r} has {column.shape[1]} entries a row now, {self.file.path} was laid out for "
                    f"{self.columns[name].shape[1]}, and a file keeps its columns: {NARROW}"
                )

    def _check_names(self, names: Set[str]) -> None:
        """Rows have the same columns always, but for ids, which may come later."""
        if names != self.columns.keys() | {ID}:
            raise InvalidInput(
                f"the memory holds the columns {sorted(self.columns)}, this batch has {sorted(names)}; "
                "every row needs the same ones"
            )
        if self.file is not None:
            raise InvalidInput(
                f"{self.file.path} was laid out for rows without ids, and a file keeps its columns: give ids from the "
                "first batch on (None for rows that have none), or start another file"
            )

    def check_inputs(self, x: Tree) -> None:
        """Refuse inputs that do not look like those that are held."""
        _check_tree(x, self.x, "inputs")

    def allocate(self, x: Tree, columns: dict[str, Tensor]) -> None:
        """Lay out the columns for rows that look like these."""
        if self.file is not None:
            self.x, self.columns = self.file.start(x, columns)
            return
        self.x = tree_map(self._empty_like, x)
        self.columns = {name: self._empty_like(column) for name, column in columns.items()}

    def write(self, slots: Tensor, x: Tree, columns: dict[str, Tensor], changes: Changes | None = None) -> None:
        self._note(slots, changes)
        with nullcontext() if self.file is None else self.file.overwriting(slots.numpy()):
            self._write(slots, x, columns)

    def _write(self, slots: Tensor, x: Tree, columns: dict[str, Tensor]) -> None:
        # By key, not by position: two dicts of the same inputs may name them in another order.
        tree_map(lambda held, leaf: held.index_copy_(0, slots, leaf.to(held.device)), self.x, x)
        for name, column in columns.items():
            if name not in self.columns:
                self.columns[name] = no_ids(self.capacity)  # the rows before had none
            if _is_wider(column, self.columns[name]):
                self.columns[name] = _widened(self.columns[name], column.shape[1])
            held = self.columns[name]
            held.index_copy_(0, slots, column.to(held.device))

    def erase(self, slots: Tensor, changes: Changes | None = None) -> None:
        """Overwrite the rows with zeros: what is forgotten is gone from here."""
        self._note(slots, changes)
        if self.file is not None:
            self.file.erase(slots.numpy())
            return
        for held in [*(tree_leaves(self.x) if self.x is not None else []), *self.columns.values()]:
            held[slots] = torch.zeros((), dtype=held.dtype)

    def snapshot(self) -> Restore:
        """Return a function that restores the columns, but for entries that `Changes` notes."""
        x, columns, file = self.x, dict(self.columns), self.file
        is_open = file is not None and file.is_open

        def restore() -> None:
            self.x, self.columns = x, columns
            if file is not None and file.is_open and not is_open:
                file.discard()

        return restore

    def _note(self, slots: Tensor, changes: Changes | None) -> None:
        if changes is None or self.x is None:
            return
        for held in (*tree_leaves(self.x), *self.columns.values()):
            changes.note(held, slots)
        if self.file is not None:
            self.file.note_digests(slots.numpy(), changes)

    def read(self, slots: Tensor, but: str | None = None) -> tuple[Tree, dict[str, Tensor]]:
        """The rows at these slots, all columns (``but`` one)."""
        if self.file is not None:
            self.file.passed(len(slots))
        return (
            tree_map(lambda held: pick(held, slots), self.x),
            {name: pick(column, slots) for name, column in self.columns.items() if name != but},
        )

    def _empty_like(self, rows: Tensor) -> Tensor:
        return torch.empty((self.capacity, *rows.shape[1:]), dtype=rows.dtype)


def _check_tree(x: Tree, held: Tree, where: str) -> None:
    if isinstance(held, tuple):
        if not isinstance(x, tuple) or len(x) != len(held):
            raise InvalidInput(f"the memory holds {where} as a tuple of {len(held)}; this batch has another form")
        for number, (leaf, held_leaf) in enumerate(zip(x, held, strict=True)):
            _check_tree(leaf, held_leaf, f"{where}[{number}]")
    elif isinstance(held, dict):
        if not isinstance(x, dict) or x.keys() != held.keys():
            raise InvalidInput(f"the memory holds {where} with the keys {sorted(held)}; this batch has another form")
        for key in held:
            _check_tree(x[key], held[key], f"{where}[{key!r}]")
    elif not isinstance(x, Tensor):
        raise InvalidInput(f"the memory holds {where} as one tensor; this batch has another form")
    else:
        _check_leaf(x, held, where)


def _check_leaf(rows: Tensor, held: Tensor, where: str) -> None:
    if rows.shape[1:] != held.shape[1:]:
        raise InvalidInput(
            f"{where} of this batch have shape {tuple(rows.shape[1:])} a row, those before had {tuple(held.shape[1:])}"
        )
    if rows.dtype != held.dtype:
        raise InvalidInput(
            f"{where} of this batch are {rows.dtype}, those before were {held.dtype}; convert them first"
        )


def _is_wider(rows: Tensor, held: Tensor) -> bool:
    lists_of_floats = rows.ndim == held.ndim == 2 and rows.dtype == held.dtype and rows.is_floating_point()
    return lists_of_floats and rows.shape[1] > held.shape[1]


def _widened(held: Tensor, width: int) -> Tensor:
    return torch.cat([held, held.new_full((len(held), width - held.shape[1]), torch.nan)], dim=1)
