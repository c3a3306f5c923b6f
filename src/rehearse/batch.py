"""The batch: inputs, targets, tasks, and where in the memory the rows live.

Inputs may be a tensor, or a tuple or dict of tensors (*trees*); every leaf has the rows as its first dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tree: TypeAlias = Any  # Tensor | tuple[Tree, ...] | dict[str, Tree]; mypy has no recursive alias for it


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that travel together.

    ``x`` is a tensor or a tuple or dict of tensors and ``y`` any tensor, with one leading dimension; ``task`` is the
    task of every row, or None where tasks are unknown; ``slots`` are the rows' addresses in a memory, or None for
    rows that do not come from one; ``columns`` are further named tensors with one entry a row.
    """

    x: Tree
    y: Tensor
    task: Tensor | int | None = None
    slots: Tensor | None = None
    columns: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.y)

    def take(self, rows: Tensor) -> Batch:
        """The given rows, in the given order, with everything that belongs to them."""
        return Batch(
            x=tree_map(lambda leaf: leaf[rows], self.x),
            y=self.y[rows],
            task=self.task[rows] if isinstance(self.task, Tensor) else self.task,
            slots=None if self.slots is None else self.slots[rows],
            columns={name: column[rows] for name, column in self.columns.items()},
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same rows on another device."""
        return Batch(
            x=tree_map(lambda leaf: leaf.to(device), self.x),
            y=self.y.to(device),
            task=self.task.to(device) if isinstance(self.task, Tensor) else self.task,
            slots=None if self.slots is None else self.slots.to(device),
            columns={name: column.to(device) for name, column in self.columns.items()},
        )


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply ``function`` to every leaf; further trees of the same shape supply its further arguments."""
    if isinstance(tree, tuple):
        return tuple(tree_map(function, *branches) for branches in zip(tree, *others, strict=True))
    if isinstance(tree, dict):
        return {key: tree_map(function, tree[key], *(other[key] for other in others)) for key in tree}
    return function(tree, *others)


def tree_leaves(tree: Tree) -> list[Any]:
    """The leaves, left to right."""
    if isinstance(tree, tuple):
        return [leaf for branch in tree for leaf in tree_leaves(branch)]
    if isinstance(tree, dict):
        return [leaf for branch in tree.values() for leaf in tree_leaves(branch)]
    return [tree]


def tree_concatenate(trees: Sequence[Tree]) -> Tree:
    """Trees of one shape joined along their rows."""
    return tree_map(lambda *leaves: torch.cat(leaves), trees[0], *trees[1:])
