"""Sequences of different lengths in one memory, whose samples all have one shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import Batch, Tree, tree_leaves, tree_map, tree_named
from .checks import check_positive
from .errors import InvalidInput

LENGTH: Final = "length"
"""The column of how long the batch was that a sample came in."""


@dataclass(frozen=True)
class Padding:
    """Store sequences padded to one length, and pass them no longer than the longest of each batch.

    Batches come with sequences of one length each, any up to ``length``, in the dimension after the samples; inside a
    batch you pad them yourself (`torch.nn.utils.rnn.pad_sequence`, or the tokenizer). The memory stores them padded to
    ``length``. In every pass they are cut to the longest of their batch again; a loss that stores logits (DER) passes
    them whole.

    Attributes:
        length: Of the longest sequence that may come.
        x: What inputs are filled up with: one value for all of them, or a tuple or dict of values in the structure of
            ``x``, with None for inputs that are no sequences. An attention mask is one of the inputs, filled with 0.
        y: What targets are filled up with, likewise; None if they are no sequences. −100 is what
            ``nn.CrossEntropyLoss()`` ignores.
    """

    length: int
    x: Tree = 0
    y: Tree = None

    def __post_init__(self) -> None:
        """Check the length."""
        check_positive(length=self.length)

    def fill(self, batch: Batch) -> Batch:
        """Return a batch padded to the full length, with a column of the length that it had."""
        values = self._values(batch)
        sequences = [
            leaf
            for leaf, value in zip(*map(tree_leaves, ((batch.x, batch.y), values)), strict=True)
            if value is not None
        ]
        lengths = {leaf.shape[1] if leaf.ndim > 1 else 0 for leaf in sequences}
        if len(lengths) != 1 or not 0 < min(lengths) <= self.length:
            found = f"the sequences of this batch are {' and '.join(map(str, sorted(lengths)))} long"
            raise InvalidInput(f"{found}; they must have one length, of at most {self.length} (see Padding)")
        x, y = tree_map(self._filled, (batch.x, batch.y), values)
        column = torch.full((len(batch),), lengths.pop())
        return replace(batch, x=x, y=y, columns={LENGTH: column, **batch.columns})

    def cut(self, batches: list[Batch]) -> list[Batch]:
        """Return batches for one pass, cut to the longest of their sequences."""
        longest = max(int(batch.columns[LENGTH].max()) if LENGTH in batch.columns else self.length for batch in batches)

        def short(leaf: Tensor, value: float | None) -> Tensor:
            return leaf if value is None else leaf[:, :longest]

        pairs = [tree_map(short, (batch.x, batch.y), self._values(batch)) for batch in batches]
        return [replace(batch, x=x, y=y) for batch, (x, y) in zip(batches, pairs, strict=True)]

    def _values(self, batch: Batch) -> Tree:
        """Return what each leaf of inputs and targets is filled with."""

        def of(tree: Tree, values: Any, name: str) -> Tree:
            if not isinstance(values, tuple | dict):
                return tree_map(lambda _: values, tree)
            if tree_named(values).keys() != tree_named(tree).keys():
                raise InvalidInput(
                    f"Padding({name}=...) has another structure than {name}; give a value or None for each"
                )
            return values

        return of(batch.x, self.x, "x"), of(batch.y, self.y, "y")

    def _filled(self, leaf: Tensor, value: float | None) -> Tensor:
        if value is None or leaf.shape[1] == self.length:
            return leaf
        return F.pad(leaf, (0, 0) * (leaf.ndim - 2) + (0, self.length - leaf.shape[1]), value=value)
