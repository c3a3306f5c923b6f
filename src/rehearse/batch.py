"""The batch: inputs, targets, tasks, and where in the memory the rows live.

Inputs may be a tensor, or a tuple or dict of tensors (*trees*); every leaf has the rows as its first dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .errors import InvalidInput, InvalidType

Kind = Literal["classes", "labels", "values"]
PART_SAMPLES: Final = 1000  # passed at once in prediction, where samples are small
PART_NUMBERS: Final = 800_000  # in them: the activations of more leave the caches, at 1.4 times the cost
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
        return self.y.shape[0]  # len() of a tensor takes four times as long

    def take(self, rows: Tensor) -> Batch:
        """The given rows, in the given order, with everything that belongs to them."""
        return Batch(
            x=tree_map(lambda leaf: pick(leaf, rows), self.x),
            y=pick(self.y, rows),
            task=pick(self.task, rows) if isinstance(self.task, Tensor) else self.task,
            slots=None if self.slots is None else pick(self.slots, rows),
            columns={name: pick(column, rows) for name, column in self.columns.items()},
        )

    def to(self, device: torch.device | str) -> Batch:
        """The same rows on another device."""
        if all(leaf.device == device for leaf in (self.y, *tree_leaves(self.x), *self.columns.values())):
            return self  # tasks and slots are only ever asked for by the memory, on its own device
        return Batch(
            x=tree_map(lambda leaf: leaf.to(device), self.x),
            y=self.y.to(device),
            task=self.task.to(device) if isinstance(self.task, Tensor) else self.task,
            slots=None if self.slots is None else self.slots.to(device),
            columns={name: column.to(device) for name, column in self.columns.items()},
        )


@dataclass(frozen=True, slots=True)
class Step:
    """What one `observe` did, as of its last update.

    Attributes:
        incoming_loss: The mean loss of the incoming batch before the step.
        replayed_loss: The mean loss of the replayed samples before the step, or None when nothing was replayed.
        replayed: The replayed samples with their slots, or None.
        interference: Their interference scores, highest first, or None when nothing was scored.
    """

    incoming_loss: float
    replayed_loss: float | None = None
    replayed: Batch | None = None
    interference: Tensor | None = None


class Progress(NamedTuple):
    """What a learner knows about its stream so far."""

    task: int | None = None
    kind: Kind | None = None
    samples: int = 0
    steps: int = 0

    def after(self, batch: Batch, steps: int = 1) -> Progress:
        """Return the progress after a batch was learned in so many steps."""
        task = batch.task if isinstance(batch.task, int) else self.task
        return Progress(task, self.kind or kind_of(batch.y), self.samples + len(batch), self.steps + steps)


def kind_of(y: Tensor) -> Kind:
    """Return what targets mean where the loss does not say it."""
    return "values" if y.is_floating_point() else "classes"


def pick(values: Tensor, rows: Tensor) -> Tensor:
    """The given rows of a tensor: row by row, several times as fast as ``values[rows]``."""
    return values.index_select(0, rows if rows.device == values.device else rows.to(values.device))


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


def tree_parts(tree: Tree) -> list[Tree]:
    """Split samples into parts that are passed at once where nothing is learned; always at least one part."""
    leaves = tree_leaves(tree)
    samples = leaves[0].shape[0]
    if samples <= 1:
        return [tree]
    numbers = sum(leaf[:1].numel() for leaf in leaves)
    size = min(PART_SAMPLES, max(PART_NUMBERS // max(numbers, 1), 1))
    return [tree_map(lambda leaf, at=at: leaf[at : at + size], tree) for at in range(0, samples, size)]


def checked_batch(x: Tree, y: Any, task: Any = None) -> Batch:
    """A batch of the user's arrays or tensors, or a refusal that says what is wrong with them.

    Shares memory with what was given; inputs and targets must be finite and have the same, positive number of rows.
    ``task`` is an integer for all rows, or one a row.
    """
    x = _checked_inputs(x, "x")
    y = as_tensor(y, "y")
    if y.ndim == 0:
        raise InvalidInput("y is a single value; it must have one entry a row")
    rows = len(y)
    if rows == 0:
        raise InvalidInput("the batch is empty")
    for leaf in tree_leaves(x):
        if len(leaf) != rows:
            raise InvalidInput(f"x has {len(leaf)} rows, y has {rows}")
    _refuse_non_finite(y, "y")
    return Batch(x, y, checked_task(task, rows))


def checked_inputs(x: Tree) -> Tree:
    """Inputs alone, for prediction; no rows are allowed here."""
    x = _checked_inputs(x, "x")
    lengths = {len(leaf) for leaf in tree_leaves(x)}
    if len(lengths) != 1:
        raise InvalidInput(f"the parts of x have different numbers of rows: {sorted(lengths)}")
    return x


def checked_task(task: Any, rows: int) -> Tensor | int | None:
    if task is None:
        return None
    if isinstance(task, bool | float | str):
        raise InvalidType(f"a task is an integer, or one a row; this is {task!r}")
    if isinstance(task, int) and 0 <= task < 2**63:
        return task
    values = as_tensor(task, "task")
    if values.is_floating_point() or values.dtype == torch.bool:
        raise InvalidType(f"tasks are integers, these are {values.dtype}")
    values = values.long()
    if values.numel() and int(values.min()) < 0:
        raise InvalidInput(f"task {int(values.min())} is negative; leave the task out (None) where it is unknown")
    if values.ndim == 0:
        return int(values)
    if values.shape != (rows,):
        raise InvalidInput(f"task has shape {tuple(values.shape)}; give one integer, or one for each of {rows} rows")
    first = int(values[0])
    return first if bool((values == first).all()) else values


def task_column(task: Tensor | int | None, rows: int) -> Tensor:
    """One task a row; −1 where it is unknown."""
    if isinstance(task, Tensor):
        return task.long().cpu()
    return torch.full((rows,), -1 if task is None else task)


def _checked_inputs(x: Tree, name: str) -> Tree:
    if isinstance(x, tuple | list) and not (isinstance(x, list) and _is_plain_list(x)):
        if not x:
            raise InvalidInput(f"{name} is empty")
        return tuple(_checked_inputs(part, f"{name}[{i}]") for i, part in enumerate(x))
    if isinstance(x, Mapping):
        if not x:
            raise InvalidInput(f"{name} is empty")
        for key in x:
            if not isinstance(key, str):
                raise InvalidType(f"{name} has the key {key!r}; the keys of a dict of inputs must be strings")
        return {key: _checked_inputs(x[key], f"{name}[{key!r}]") for key in x}
    leaf = as_tensor(x, name)
    if leaf.ndim == 0:
        raise InvalidInput(f"{name} is a single value; it must have one entry a row")
    _refuse_non_finite(leaf, name)
    return leaf


def _is_plain_list(x: list[Any]) -> bool:
    return not any(isinstance(part, Tensor | np.ndarray | Mapping | tuple) for part in x)


def as_tensor(values: Any, name: str) -> Tensor:
    """The user's numbers as a tensor, or a refusal; shares memory where torch can."""
    try:
        array = None if isinstance(values, Tensor) else np.asarray(values)
        if array is not None and array.dtype.kind in "USO":
            raise InvalidType(
                f"{name} holds text or other objects; give numbers (class labels from 0 on, or let the scikit-learn or "
                "river adapter number them)"
            )
        tensor = values.detach() if array is None else _from_array(array)
    except InvalidType:
        raise
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InvalidType(f"{name} cannot be made into a tensor: {problem}") from problem
    eight_bit = tensor.is_floating_point() and tensor.element_size() == 1  # torch can store these, not compare them
    if tensor.dtype in (torch.uint16, torch.uint32, torch.uint64):
        raise InvalidType(f"{name} is {tensor.dtype}, of which torch cannot pick rows; convert it to int64 first")
    if tensor.is_complex() or tensor.is_quantized or eight_bit or tensor.layout != torch.strided:
        raise InvalidType(f"{name} is {tensor.dtype} with layout {tensor.layout}; use dense real numbers")
    return tensor


def _from_array(values: np.ndarray[Any, Any]) -> Tensor:
    # Torch has no read-only tensors and no negative strides: such arrays (memory-mapped files, x[::-1]) are copied.
    plain = values.flags.writeable and all(stride >= 0 for stride in values.strides)
    return torch.from_numpy(values if plain else values.copy())


def _refuse_non_finite(values: Tensor, name: str) -> None:
    # The sum is finite unless an entry is not (or it overflows, hence the second look): one cheap pass.
    if values.is_floating_point() and not bool(values.sum().isfinite()) and not bool(values.isfinite().all()):
        raise InvalidInput(f"{name} has entries that are not finite (NaN or infinite)")
