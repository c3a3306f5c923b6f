"""Sequences of different lengths in one memory, whose samples all have one shape."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from .batch import Batch, Tree, tree_leaves, tree_map, tree_named
from .checks import check_positive
from .errors import InvalidInput

LENGTH: Final = "unpadded_length"
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
        """Return a ``batch`` padded to the full length, with a column of the length that it had."""
        values = self._values(batch)
        pairs = zip(tree_leaves((batch.x, batch.y)), tree_leaves(values), strict=True)
        lengths = sorted({leaf.shape[1] if leaf.ndim > 1 else 0 for leaf, value in pairs if value is not None})
        if len(lengths) != 1 or not 0 < lengths[0] <= self.length:
            found = f"the sequences of this batch are {' and '.join(map(str, lengths))} long"
            raise InvalidInput(f"{found}; they must have one length, of at most {self.length} (see Padding)")

        def filled(leaf: Tensor, value: float | None) -> Tensor:
            added = (0, 0) * (leaf.ndim - 2) + (0, self.length - lengths[0])
            return leaf if value is None else F.pad(leaf, added, value=value)

        x, y = tree_map(filled, (batch.x, batch.y), values)
        return replace(batch, x=x, y=y, columns={**batch.columns, LENGTH: torch.full((len(batch),), lengths[0])})

    def cut(self, *batches: Batch) -> tuple[Batch, ...]:
        """Return ``batches`` for one pass, cut to the longest of their sequences."""
        longest = max(int(batch.columns[LENGTH].max()) if LENGTH in batch.columns else self.length for batch in batches)

        def short(leaf: Tensor, value: float | None) -> Tensor:
            return leaf if value is None else leaf[:, :longest]

        pairs = [tree_map(short, (batch.x, batch.y), self._values(batch)) for batch in batches]
        return tuple(replace(batch, x=x, y=y) for batch, (x, y) in zip(batches, pairs, strict=True))

    def _values(self, batch: Batch) -> Tree:
        """Return what each leaf of inputs and targets is filled with."""
        found = []
        for tree, values in ((batch.x, self.x), (batch.y, self.y)):
            whole = values if isinstance(values, tuple | dict) else tree_map(lambda _, value=values: value, tree)
            if tree_named(whole).keys() != tree_named(tree).keys():
                raise InvalidInput(
                    "the values of Padding have another structure than the batch; give one or None for each"
                )
            found.append(whole)
        return tuple(found)
