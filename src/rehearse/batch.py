"""The batch: inputs, targets, tasks, and where in the memory the samples are stored.

Inputs and targets may be a tensor, or a tuple or dict of tensors (*trees*); every leaf has the samples as its first
dimension.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from .errors import InvalidInput, InvalidType

Kind = Literal["classes", "tokens", "labels", "values"]
WEIGHT: Final = "weight"
"""The column of sample weights."""
RAGGED: Final = " (a list of sequences of different length needs a Replay with pad=Padding(...))"
TINY: Final = torch.finfo(torch.float32).tiny
PART_SAMPLES: Final = 1000  # passed at once in prediction, where samples are small
PART_NUMBERS: Final = 800_000  # in them: the activations of more leave the caches, at 1.4 times the cost
INTEGERS = {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
DTYPES: Final = INTEGERS | {torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64}
"""Of inputs and targets. Torch has others that it can store, but not compare or index."""
Tree: TypeAlias = Any  # Tensor | tuple[Tree, ...] | dict[str, Tree]; mypy has no recursive alias for it


@dataclass(frozen=True, slots=True, repr=False)
class Batch:
    """Samples that travel together.

    Attributes:
        x: Inputs: a tensor, or a tuple or dict of tensors, with the samples as first dimension.
        y: Targets: likewise.
        task: The task of all samples or of each, or None if tasks are unknown.
        slots: The samples' addresses in a memory, or None if they do not come from one.
        columns: Further named tensors with one entry per sample.
    """

    x: Tree
    y: Tree
    task: Tensor | int | None = None
    slots: Tensor | None = None
    columns: Mapping[str, Tensor] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of samples."""
        y = self.y if isinstance(self.y, Tensor) else tree_leaves(self.y)[0]
        samples: int = y.shape[0]  # len() of a tensor takes four times as long
        return samples

    def __repr__(self) -> str:
        """Name shapes; the numbers would flood a terminal."""
        shapes = tree_map(lambda leaf: tuple(leaf.shape), (self.x, self.y))
        return f"Batch(x of shape {shapes[0]}, y of shape {shapes[1]}{''.join(f', {name}' for name in self.columns)})"

    def take(self, samples: Tensor) -> Batch:
        """Return the ``samples`` at these positions, in this order, with everything that belongs to them."""
        return self._map(lambda values: pick(values, samples))

    def to(self, device: torch.device | str) -> Batch:
        """Return the same samples on another ``device``."""
        if all(leaf.device == device for leaf in (*tree_leaves((self.x, self.y)), *self.columns.values())):
            return self  # tasks and slots are used by the memory alone, on its own device
        return self._map(lambda values: values.to(device))

    def mean_loss(self, loss: Any, logits: Tree, replayed: bool) -> Tensor:
        """Return Σ w ℓ / Σ w c with the sample weights w and the `counts` c, which are 1 where there are none.

        It is 0 where the denominator is.

        Args:
            loss: Returns one value per sample.
            logits: The model's outputs for these samples.
            replayed: Whether they come from the memory.
        """
        losses, counts = loss(logits, self, replayed), self.counts(loss)
        if counts is None:
            return self.proportioned(losses).mean()
        total = self.weighted(counts.to(losses)).sum()
        return self.weighted(losses).sum() / total.clamp_min(TINY)

    def counts(self, loss: Any) -> Tensor | None:
        """Return what each sample counts for in the mean of this ``loss``, or None if all count alike."""
        counts = getattr(loss, "counts", None)
        return None if counts is None else counts(self)

    def weighted(self, values: Tensor) -> Tensor:
        """Return ``values`` times the weights of their samples."""
        weights = self.columns.get(WEIGHT)
        return values if weights is None else values * weights.to(values).view(-1, *[1] * (values.ndim - 1))

    def proportioned(self, values: Tensor) -> Tensor:
        """Return ``values`` times w / mean w: their plain mean is then the weighted one."""
        weights = self.columns.get(WEIGHT)
        return values if weights is None else self.weighted(values) / weights.mean().clamp_min(TINY).to(values)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        task, slots = (function(one) if isinstance(one, Tensor) else one for one in (self.task, self.slots))
        columns = {name: function(column) for name, column in self.columns.items()}
        x, y = tree_map(function, (self.x, self.y))
        return Batch(x, y, task, slots, columns)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, repr=False)
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

    def __repr__(self) -> str:
        """Name losses and counts; images would flood a terminal."""
        replayed = f", {self.replayed_loss:.4g} of {len(self.replayed)} replayed" if self.replayed is not None else ""
        scored = f", interference up to {self.interference.max():.4g}" if self.interference is not None else ""
        return f"Step(loss {self.incoming_loss:.4g}{replayed}{scored})"


class Progress(NamedTuple):
    """What a learner knows about its stream so far."""

    task: int | None = None
    kind: Kind | None = None
    samples: int = 0
    steps: int = 0

    def after(self, batch: Batch, steps: int = 1, logits: Tree | None = None) -> Progress:
        """Return the progress after a batch with these logits was learned in so many steps."""
        task = batch.task if isinstance(batch.task, int) else self.task
        return Progress(task, kind_of(batch.y, logits, self.kind), self.samples + len(batch), self.steps + steps)


def kind_of(y: Tree, logits: Tree | None = None, kind: Tree | None = None) -> Tree:
    """Return what outputs mean: what is known already, and else what their targets show, head by head.

    Heads without targets of the same structure are values.
    """
    if logits is not None and tree_named(logits).keys() != tree_named(y).keys():
        return kind or "values"
    if kind is None:
        kind = tree_map(lambda leaf: "values" if leaf.is_floating_point() else "classes", y)
    if logits is None or tree_named(kind).keys() != tree_named(y).keys():
        return kind
    return tree_map(lambda k, t, s: "tokens" if k == "classes" and classes_are_last(s, t) else k, kind, y, logits)


def classes_are_last(logits: Tensor, y: Tensor) -> bool:
    """Return whether labels fit logits with the classes in the last dimension, and not in dimension 1."""
    return logits.ndim > 2 and logits.shape[:-1] == y.shape != logits.shape[:1] + logits.shape[2:]


def no_labels(logits: Tensor, y: Tensor) -> str:
    """Return why targets are no class labels for these logits, and what to do."""
    ready = not y.is_floating_point() and y.dtype != torch.bool
    shapes = f"labels of shape {tuple(y.shape)} do not fit outputs of shape {tuple(logits.shape)}"
    found = shapes if ready else f"class labels must be integers, these are {y.dtype}"
    rows = y.ndim == logits.ndim == 2 and y.shape[1] > 1 and bool((y >= 0).all())
    if rows and bool(((y.double().sum(1) - 1).abs() < 0.01).all()):
        return f"{found}; these look like one-hot labels or probabilities: pass class indices, y.argmax(1)"
    return found if ready else f"{found}; for values pass loss=nn.MSELoss()"


def pick(values: Tensor, samples: Tensor) -> Tensor:
    """Return ``values[samples]``, several times as fast."""
    return values.index_select(0, samples if samples.device == values.device else samples.to(values.device))


def tree_map(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply ``function`` to every leaf; further trees of the same shape supply its further arguments."""
    if isinstance(tree, tuple):
        return tuple(tree_map(function, *branches) for branches in zip(tree, *others, strict=True))
    if isinstance(tree, dict):
        return {key: tree_map(function, tree[key], *(other[key] for other in others)) for key in tree}
    return function(tree, *others)


def tree_leaves(tree: Tree) -> list[Any]:
    """Return the leaves, left to right."""
    if isinstance(tree, tuple | dict):
        return [leaf for branch in (tree.values() if isinstance(tree, dict) else tree) for leaf in tree_leaves(branch)]
    return [tree]


def tree_named(tree: Tree, name: str = "") -> dict[str, Any]:
    """Return the leaves, each with the name that says where it is."""
    if not isinstance(tree, tuple | dict):
        return {name: tree}
    parts = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {where: leaf for key, part in parts for where, leaf in tree_named(part, f"{name}[{key!r}]").items()}


def highest(samples: Batch, scores: Tensor, n: int) -> tuple[Batch, Tensor]:
    """Return the ``n`` samples with the highest scores, and these, highest first; ties keep their order."""
    scores = torch.nan_to_num(scores, nan=torch.inf, posinf=torch.inf)  # NaN is the worst loss, not the lowest
    ranked, order = scores.sort(descending=True, stable=True)
    return samples.take(order[:n].cpu()), ranked[:n]


def given(*batches: Batch) -> tuple[Batch, ...]:
    """Return batches as they are; a function with a name, which can be pickled."""
    return batches


def unchanged(x: Any) -> Any:
    """Return inputs, or a batch, as they are; a function with a name, which can be pickled."""
    return x


def tree_concatenate(trees: Sequence[Tree]) -> Tree:
    """Join trees of one structure along their samples."""
    if len(trees) == 1:
        return trees[0]
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
    """Return a batch of the user's arrays or tensors, which share memory with it.

    Args:
        x: Inputs.
        y: Targets; a list or tuple of numbers is one tensor.
        task: An integer for all samples, or one per sample.

    Raises:
        InvalidInput: If there are no samples, or entries that are not finite, or the numbers of samples differ.
        InvalidType: If something cannot be made into a tensor.
    """
    several = isinstance(y, Mapping) or (isinstance(y, tuple) and any(_is_part(part) for part in y))
    x, y = checked_inputs(x), checked_inputs(y, "y") if several else _checked_leaf(y, "y")
    given, samples = (len(tree_leaves(tree)[0]) for tree in (x, y))
    if samples == 0:
        raise InvalidInput("the batch is empty")
    if given != samples:
        raise InvalidInput(f"x has {given} samples, y has {samples}")
    return Batch(x, y, checked_task(task, samples))


def checked_inputs(x: Tree, name: str = "x") -> Tree:
    """Return inputs alone, for prediction; there may be no samples here."""
    x = _checked_inputs(x, name)
    lengths = {leaf.shape[0] for leaf in tree_leaves(x)}
    if len(lengths) != 1:
        raise InvalidInput(f"the parts of {name} have different numbers of samples: {sorted(lengths)}{RAGGED}")
    return x


def checked_task(task: Any, samples: int) -> Tensor | int | None:
    """Return the task of all samples, or one per sample, or None."""
    if task is None or (type(task) is int and 0 <= task < 2**63):
        return task
    values = as_tensor(task, "task")
    if values.is_floating_point() or values.dtype == torch.bool:
        raise InvalidType(f"tasks are integers, these are {values.dtype}")
    if values.shape not in ((), (samples,)):
        raise InvalidInput(f"task has shape {tuple(values.shape)}; give one, or one for each of {samples} samples")
    values = values.long().expand(samples)
    lowest, highest = int(values.min()), int(values.max())
    if lowest < 0:
        raise InvalidInput(f"task {lowest} is negative; leave the task out (None) where it is unknown")
    return lowest if lowest == highest else values


def task_column(task: Tensor | int | None, samples: int) -> Tensor:
    """Return one task per sample; −1 where it is unknown."""
    if isinstance(task, Tensor):
        return task.long().cpu()
    return torch.full((samples,), -1 if task is None else task)


def _checked_inputs(x: Tree, name: str) -> Tree:
    if isinstance(x, list) and any(_is_part(part) for part in x):
        x = tuple(x)
    if isinstance(x, (tuple, list, Mapping)) and not x:
        raise InvalidInput(f"{name} is empty")
    if isinstance(x, tuple):
        return tuple(_checked_inputs(part, f"{name}[{i}]") for i, part in enumerate(x))
    if not isinstance(x, Mapping):
        return _checked_leaf(x, name)
    for key in x:
        if not isinstance(key, str):
            raise InvalidType(f"{name} has the key {key!r}; the keys of a dict must be strings")
    return {key: _checked_inputs(x[key], f"{name}[{key!r}]") for key in x}


def _is_part(values: Any) -> bool:
    return isinstance(values, Tensor | np.ndarray | Mapping | tuple)


def _checked_leaf(values: Any, name: str) -> Tensor:
    leaf = as_tensor(values, name)
    if leaf.ndim == 0:
        raise InvalidInput(f"{name} is a single value; it must have one entry per sample")
    if len(leaf) and not leaf.numel():
        raise InvalidInput(f"{name} has shape {tuple(leaf.shape)}; there is nothing in its samples")
    # The sum is finite unless an entry is not (or it overflows, hence the second check): one cheap pass.
    if leaf.is_floating_point() and not math.isfinite(leaf.sum().item()) and not bool(leaf.isfinite().all()):
        raise InvalidInput(f"{name} has entries that are not finite (NaN or infinite)")
    return leaf


def as_tensor(values: Any, name: str) -> Tensor:
    """Return the user's numbers as a tensor, which shares memory with them where torch can."""
    tensor = values.detach() if isinstance(values, Tensor) else _from_array(values, name)
    if tensor.dtype not in DTYPES or tensor.layout != torch.strided or tensor.is_nested or tensor.is_meta:
        kind = "nested" if tensor.is_nested else "meta" if tensor.is_meta else tensor.layout
        raise InvalidType(f"{name} is {tensor.dtype}, {kind}; use dense real numbers like float32 or int64")
    return tensor


def _from_array(values: Any, name: str) -> Tensor:
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "USO":
            # Torch has no read-only tensors and no negative strides: such arrays (memory-mapped, x[::-1]) are copied.
            plain = array.flags.writeable and all(stride >= 0 for stride in array.strides)
            return torch.from_numpy(array if plain else array.copy())
    except (TypeError, ValueError, RuntimeError) as problem:
        raise InvalidType(f"{name} cannot be made into a tensor: {problem}{RAGGED}") from problem
    raise InvalidType(f"{name} holds text or other objects; give numbers (class labels are integers from 0 on)")


def one_tensor(x: Any, name: str) -> Tensor:
    """Return prepared inputs, if the network of this name can take them."""
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InvalidInput(f"the {name} takes one tensor of real numbers; these inputs are something else")
    return x
