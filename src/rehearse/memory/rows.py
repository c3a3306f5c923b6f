"""The stored samples themselves: preallocated columns, one row per slot, in the dtype that came."""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch, Tree, pick, tree_leaves, tree_map, tree_named
from ..errors import InvalidInput
from .changes import Changes
from .columns import OPTIONAL
from .mapped import MappedFile

ARRIVED, TASK, TARGET = "arrived", "task", "y"  # columns that every memory has


class Rows:
    """Columns of ``capacity`` rows: the inputs (a tree of tensors) and any number of named tensors.

    A column is laid out when the first samples arrive and keeps their dtype and shape. Pages that were never written
    take no room, so a large capacity costs what it holds. A named column with a list of floats per sample may become
    wider (the logits of a head that has grown): earlier samples then have NaN there. With a ``file`` the columns are
    views of it, and keep their width.
    """

    def __init__(self, capacity: int, changes: Changes, file: MappedFile | None = None) -> None:
        """Start without columns."""
        self.capacity, self.file, self._changes = capacity, file, changes
        self.x: Tree | None = None
        self.columns: dict[str, Tensor] = {}

    def leaves(self) -> list[Tensor]:
        """Return all columns, those of the inputs first."""
        return [] if self.x is None else tree_leaves((self.x, self.columns))

    def check(self, x: Tree, columns: dict[str, Tensor]) -> None:
        """Refuse samples that do not look like the stored ones."""
        if self.x is not None and columns.keys() != self.columns.keys():  # ids and weights alone may come later
            added = columns.keys() - self.columns.keys()
            if not self.columns.keys() < columns.keys() or not added <= OPTIONAL.keys():
                raise InvalidInput(f"this batch has the columns {sorted(columns)}; all need {sorted(self.columns)}")
            if self.file is not None:
                lacking = f"{self.file.path} has no column {' or '.join(sorted(added))}"
                raise InvalidInput(f"{lacking}: give it from the first batch on, or start anew")
        self.check_alike(x, columns)

    def check_alike(self, x: Tree, columns: dict[str, Tensor]) -> None:
        """Refuse inputs, or any of the columns, that do not look like the stored ones."""
        if self.x is None:
            return
        pairs = [("inputs", x, self.x)]
        known = [(name, column, self.columns[name]) for name, column in columns.items() if name in self.columns]
        pairs += [(f"column {name!r}", column, held) for name, column, held in known if not _is_wider(column, held)]
        for name, tree, stored in pairs:
            given, held = tree_named(tree, name), tree_named(stored, name)
            if given.keys() != held.keys():
                form = f"this batch has another form: {', '.join(given)}"
                raise InvalidInput(f"the memory holds {', '.join(held)}; {form}")
            for where, leaf in given.items():
                check_leaf(leaf, held[where], where)
        self.check_widths(columns)

    def check_widths(self, columns: dict[str, Tensor]) -> None:
        """Refuse columns that have become wider, where they cannot: in a file."""
        for name, column in columns.items():
            if self.file is not None and name in self.columns and _is_wider(column, self.columns[name]):
                wide, room = f"{name!r} is {column.shape[1]} wide now", f"laid out for {self.columns[name].shape[1]}"
                advice = "grow the head before the first sample is stored, or fill a new memory by learner.remember()"
                raise InvalidInput(f"column {wide}, and {self.file.path} was {room} and keeps its columns: {advice}")

    def allocate(self, x: Tree, columns: dict[str, Tensor]) -> None:
        """Lay out the columns for samples that look like these."""
        if self.file is not None:
            self.x, self.columns = self.file.start(x, columns)
        else:
            self.x, self.columns = tree_map(self._zeros_like, (x, columns))

    def write(self, slots: Tensor, x: Tree, columns: dict[str, Tensor]) -> None:
        """Write samples, after noting what they overwrite."""
        if self.file is not None:
            self.file.write(slots.numpy(), x, columns)
            return
        for held in self.leaves():
            self._changes.note(held, slots)
        for name, column in columns.items():
            if name not in self.columns:
                self.columns[name] = OPTIONAL[name](self.capacity)  # earlier samples had none
            if _is_wider(column, self.columns[name]):
                added = column.shape[1] - self.columns[name].shape[1]
                self.columns[name] = F.pad(self.columns[name], (0, added), value=torch.nan)
        # By key, not by position: two dicts of the same inputs may name them in another order.
        tree_map(lambda leaf, held: held.index_copy_(0, slots, leaf.cpu()), (x, columns), (self.x, self.columns))

    def erase(self, slots: Tensor) -> None:
        """Overwrite samples with zeros, after noting them."""
        if self.file is not None:
            self.file.erase(slots.numpy())
            return
        for held in self.leaves():
            self._changes.note(held, slots)
            held.index_fill_(0, slots, 0)

    def read(self, slots: Tensor) -> tuple[Tree, dict[str, Tensor]]:
        """Return the samples at these slots: the inputs, and all columns."""
        if self.file is not None:
            self.file.passed(len(slots))
        x, columns = tree_map(lambda held: pick(held, slots), (self.x, self.columns))
        return x, columns

    def _zeros_like(self, samples: Tensor) -> Tensor:
        """Return a column of zeros; numpy's take no room before they are written, torch's do."""
        shape = (self.capacity, *samples.shape[1:])
        numbers = math.prod(shape)
        raw = np.zeros((numbers + 1) * samples.element_size(), dtype=np.uint8)  # torch cannot view no bytes
        return torch.from_numpy(raw).view(samples.dtype)[:numbers].view(shape)


def as_batch(x: Tree, columns: dict[str, Tensor], slots: Tensor | None = None) -> Batch:
    """Return samples with all their columns as a batch."""
    own = columns.pop(TARGET), columns.pop(TASK), columns.pop(ARRIVED)
    return Batch(x, own[0], own[1], slots, columns)


def check_leaf(samples: Tensor, held: Tensor, where: str) -> None:
    """Refuse samples of another shape or dtype than those before."""
    if samples.shape[1:] != held.shape[1:]:
        shapes = tuple(samples.shape[1:]), tuple(held.shape[1:])
        what = f"{where} of this batch have shape {shapes[0]} per sample, those before had {shapes[1]}"
        raise InvalidInput(f"{what}; for sequences of different length give the learner pad=Padding(...)")
    if samples.dtype != held.dtype:
        raise InvalidInput(f"{where} of this batch are {samples.dtype}, those before were {held.dtype}; convert them")


def _is_wider(samples: Tree, held: Tree) -> bool:
    if not isinstance(samples, Tensor) or not isinstance(held, Tensor):
        return False
    lists_of_floats = samples.ndim == held.ndim == 2 and samples.dtype == held.dtype and samples.is_floating_point()
    return lists_of_floats and samples.shape[1] > held.shape[1]
