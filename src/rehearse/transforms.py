"""Transforms of inputs: of images in training (``augment=``), running statistics (``prepare=``), padding (``pad=``).

Samples are stored as they came. Whenever inputs are used they pass `augment` (in training alone), then `prepare`, then
the model. So statistics that move with the stream apply to all samples alike, stored ones included.

An augmentation is called ``(x, generator)`` with stored inputs and returns inputs of the same shape and dtype. It draws
from the generator, which belongs to the learner: it is saved, and undone with a step that fails. A function of your own
may also draw from torch's global state (``augment=lambda x, _: my_transform(x)``): in training that is the learner's
own, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from .batch import Batch, Tree, as_tensor, tree_leaves, tree_map, tree_named
from .checks import check, check_fractions, check_positive, count
from .described import Described, short
from .errors import CheckpointError, InvalidInput, InvalidType
from .random import torch_generator
from .undo import Restore

Transform = Callable[[Tree, Generator], Tree]
LENGTH: Final = "unpadded_length"
"""The column of how long the batch was that a sample came in."""
CONSTANT = 1e-12  # standard deviations, relative to the mean, that are rounding errors


class Crop(Described):
    """Pad images on all sides and cut them back to their size at a random place: a shift by up to ``padding``."""

    def __init__(self, padding: int = 4, fill: float | None = None) -> None:
        """Set the border.

        Args:
            padding: In pixels. 4 is usual for photographs of 32 × 32, 1 or 2 for digits.
            fill: The value of the border, as images are stored; by default 128 for bytes and 0 for floats.
        """
        check_positive(padding=padding)
        self.padding, self.fill = padding, fill

    def __call__(self, x: Tree, generator: Generator) -> Tensor:
        """Return shifted images."""
        x, p = images(x), self.padding
        fill = self.fill if self.fill is not None else 128 if x.dtype == torch.uint8 else 0
        n, height, width = len(x), x.shape[-2], x.shape[-1]
        places = F.pad(x, (p, p, p, p), value=fill).unfold(-2, height, 1).unfold(-2, width, 1)  # a view
        top, left = torch.randint(2 * p + 1, (2, n), generator=generator).to(x.device)
        places = places.movedim((-4, -3), (1, 2))
        return places[torch.arange(n, device=x.device), top, left]


class Flip(Described):
    """Mirror images left to right, each with probability ``p``."""

    def __init__(self, p: float = 0.5) -> None:
        """Set the probability."""
        check_fractions(p=p)
        self.p = p

    def __call__(self, x: Tree, generator: Generator) -> Tensor:
        """Return images, some of them mirrored."""
        x = images(x)
        chosen = torch.rand(len(x), generator=generator).to(x.device) < self.p
        return torch.where(chosen.view(-1, *[1] * (x.ndim - 1)), x.flip(-1), x)


class Color(Described):
    """Change contrast and brightness of each image by random factors c and b: x ← b · (mean + c · (x − mean))."""

    def __init__(self, brightness: float = 0.2, contrast: float = 0.2) -> None:
        """Set how far the factors may lie from 1: b by ``brightness``, c by ``contrast``."""
        check_fractions(brightness=brightness, contrast=contrast)
        self.brightness, self.contrast = brightness, contrast

    def __call__(self, x: Tree, generator: Generator) -> Tensor:
        """Return images of other brightness and contrast; bytes stay between 0 and 255, floats have no limits."""
        x = images(x)
        values = x if x.is_floating_point() else x.float()
        drawn = torch.rand(2, len(x), *[1] * (x.ndim - 1), generator=generator).mul_(2).sub_(1).to(values)
        mean = values.mean(tuple(range(1, x.ndim)), keepdim=True)
        changed: Tensor = (1 + self.brightness * drawn[0]) * (mean + (1 + self.contrast * drawn[1]) * (values - mean))
        return changed if x.is_floating_point() else changed.round_().clamp_(0, 255).to(x.dtype)


class Chain(Described):
    """One transform after the other."""

    def __init__(self, *transforms: Transform) -> None:
        """Set the ``transforms``, the first one first."""
        self.transforms = tuple(map(checked_transform, transforms))

    def __call__(self, x: Tree, generator: Generator) -> Tree:
        """Return transformed inputs."""
        for transform in self.transforms:
            x = transform(x, generator)
        return x


def images(x: Tree) -> Tensor:
    """Return a batch of images: (samples, height, width) or (samples, channels, height, width), bytes or floats."""
    if not isinstance(x, Tensor) or x.ndim not in (3, 4) or not (x.dtype == torch.uint8 or x.is_floating_point()):
        what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InvalidInput(
            "this augmentation takes images, bytes or floats of shape (samples, channels, height, width), "
            f"not {what}; for other inputs write a function (x, generator) of your own"
        )
    return x


def checked_transform(transform: Any) -> Transform:
    """Return a transform, or raise an error if it cannot be called."""
    if isinstance(transform, type) or not callable(transform):
        raise InvalidType(f"a transform is a function (x, generator), such as Flip(); this is {transform!r}")
    return transform  # type: ignore[no-any-return]


class Augmentation:
    """A learner's ``augment`` with random numbers of its own."""

    def __init__(self, transform: Transform, seed: int) -> None:
        """Set the transform, and start its generator."""
        self.transform, self.generator = checked_transform(transform), torch_generator(seed, "augment")

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with transformed inputs. The transform gets a copy, and may work in place."""
        x = self.transform(tree_map(torch.clone, batch.x), self.generator)
        if _shapes(x) != _shapes(batch.x):
            raise InvalidInput(f"augment must return inputs as it gets them, {_shapes(batch.x)}, not {_shapes(x)}")
        return replace(batch, x=x)

    def snapshot(self) -> Restore:
        """Return a function that restores the random numbers."""
        return partial(self.generator.set_state, self.generator.get_state())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state of the random numbers."""
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Load a ``state`` that `state_dict` returned."""
        self.generator.set_state(state["generator"].cpu())

    def __repr__(self) -> str:
        """Name the transform."""
        return short(self.transform)


def _shapes(x: Tree) -> Any:
    """Return shape and dtype of every leaf, or the type of what is no tensor."""
    return tree_map(lambda leaf: (*leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else type(leaf).__name__, x)


@runtime_checkable
class Observer(Protocol):
    """A ``prepare`` that learns from incoming inputs. What it learns is saved, and undone with a batch that fails.

    `deepcopy` must give an independent copy: a `Predictor` has one.
    """

    def __call__(self, x: Tree) -> Tree:
        """Return the model's inputs for stored or incoming ones; changes nothing."""

    def observe(self, x: Tree) -> None:
        """Learn from an incoming batch, before the model does."""

    def snapshot(self) -> Restore:
        """Return a function that restores the present state."""

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned as tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state`` that `state_dict` returned."""


class RunningScaler(Described):
    """Standardize each feature by its mean and variance over all incoming samples: a ``prepare``.

        x ↦ (x − mean) / std

    Both are exact, whatever the size of the batches, and computed in float64. A feature that has always been the same
    becomes 0; before the first batch inputs stay as they are. Inputs are one tensor; its features are all places after
    the first dimension.
    """

    count: int
    mean: Tensor
    squares: Tensor
    std: Tensor

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        """Start without statistics; the model gets inputs of this ``dtype``."""
        self.dtype = dtype
        self._set(0, torch.empty(0), torch.empty(0))

    def _set(self, count: int, mean: Tensor, squares: Tensor) -> None:
        """Set the number of samples, their mean and the sum of their squared deviations: new tensors, all at once."""
        mean, squares = mean.double(), squares.double()
        std = (squares / max(count, 1)).sqrt()
        std = torch.where(std > CONSTANT * mean.abs(), std, 1.0)  # 1 where a feature is constant
        vars(self).update(count=count, mean=mean, squares=squares, std=std)

    def observe(self, x: Tree) -> None:
        """Let a batch ``x`` move the statistics (Chan's update)."""
        values = self._checked(x).detach().cpu().double()
        n, mean = len(values), values.mean(0)
        squares, total = (values - mean).square().sum(0), self.count + n
        if self.count:
            delta = mean - self.mean
            mean = self.mean + delta * (n / total)
            squares = self.squares + squares + delta.square() * (self.count * n / total)
        self._set(total, mean, squares)

    def __call__(self, x: Tree) -> Tensor:
        """Return standardized inputs."""
        x = self._checked(x)
        values: Tensor = x if x.dtype == torch.float64 else x.float()
        if self.count:
            values = (values - self.mean.to(values)) / self.std.to(values)
        return values.to(self.dtype)

    def snapshot(self) -> Restore:
        """Return a function that restores the statistics."""
        return partial(vars(self).update, dict(vars(self)))

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state`` that `state_dict` returned."""
        check(state, {"count": count, "mean": _statistic, "squares": _statistic}, "the scaler's state")
        if state["mean"].shape != state["squares"].shape or bool((state["squares"] < 0).any()):
            raise CheckpointError("the scaler's mean and squares in this state do not belong together")
        self._set(**state)

    def _checked(self, x: Tree) -> Tensor:
        if not isinstance(x, Tensor):
            raise InvalidInput("RunningScaler takes one tensor; for a tuple or a dict write a prepare of your own")
        if self.count and x.shape[1:] != self.mean.shape:
            raise InvalidInput(f"inputs have shape {tuple(x.shape[1:])} per sample, before {tuple(self.mean.shape)}")
        return x


def _statistic(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype == torch.float64 and bool(value.isfinite().all())


@dataclass(frozen=True)
class Padding:
    """Store sequences padded to one length, and pass them no longer than the longest of each batch.

    A batch of sequences is a list of them, of any lengths up to ``length``, or a tensor in which they are padded to
    one. The memory stores them padded to ``length``. In every pass they are cut to the longest of their batch again; a
    loss that stores logits (DER) passes them whole.

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

    def collated(self, *trees: Tree) -> Any:
        """Return inputs, or inputs and targets (``trees``), with every list of sequences as one padded tensor."""
        trees = tuple(dict(tree) if isinstance(tree, Mapping) else tree for tree in trees)
        values = self._values(*trees)
        padded = tree_map(_together, trees, values)
        pairs = zip(tree_leaves(trees), tree_leaves(values), strict=True)
        lists = [map(len, leaf) for leaf, value in pairs if isinstance(leaf, list) and value is not None]
        for sample, lengths in enumerate(zip(*lists)):
            if len(set(lengths)) > 1:
                found = f"the sequences of sample {sample} are {' and '.join(map(str, sorted(set(lengths))))} long"
                raise InvalidInput(f"{found}; all that belong to one sample must have one length (see Padding)")
        return padded

    def fill(self, batch: Batch) -> Batch:
        """Return a ``batch`` padded to the full length, with a column of the length that it had."""
        values = self._values(batch.x, batch.y)
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

        pairs = [tree_map(short, (batch.x, batch.y), self._values(batch.x, batch.y)) for batch in batches]
        return tuple(replace(batch, x=x, y=y) for batch, (x, y) in zip(batches, pairs, strict=True))

    def _values(self, *trees: Tree) -> Tree:
        """Return what each leaf of inputs, or of inputs and targets, is filled with."""
        found = []
        for tree, values in zip(trees, (self.x, self.y)):
            whole = values if isinstance(values, tuple | dict) else tree_map(lambda _, value=values: value, tree)
            if tree_named(whole).keys() != tree_named(tree).keys():
                raise InvalidInput("Padding has another structure than the batch; give a value or None for each")
            found.append(tree_map(lambda _, value: value, tree, whole))  # in the order of the batch
        return tuple(found)


def checked_padding(pad: Any) -> Padding:
    """Return a padding, or raise an error if it is none."""
    if not isinstance(pad, Padding):
        raise InvalidType(f"pad is {pad!r:.80}; it must be a Padding(length), or None")
    return pad


def _together(sequences: Any, value: float | None) -> Any:
    if not isinstance(sequences, list) or value is None:
        return sequences
    parts = [as_tensor(one, "a sequence") for one in sequences]
    types, shapes = dict.fromkeys(part.dtype for part in parts), dict.fromkeys((*part.shape[1:],) for part in parts)
    if not all(part.ndim and len(part) for part in parts) or not parts:
        trouble = "none of them may be empty, or a single number"
    elif len(types) > 1:
        trouble = f"they are {' and '.join(map(str, types))}; make them one type"
    elif len(shapes) > 1:
        trouble = f"their entries have shapes {' and '.join(map(str, shapes))}"
    else:
        try:
            return pad_sequence(parts, True, value)
        except RuntimeError as problem:  # a value that this type has not, several devices
            trouble = str(problem)
    raise InvalidInput(f"these sequences cannot be padded to one length: {trouble}")
