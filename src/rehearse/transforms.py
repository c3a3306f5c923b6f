"""Transforms of whole batches of images, for ``augment=``.

A transform is called ``(x, generator)`` with stored inputs, before `prepare`, and returns inputs of the same shape and
dtype. It draws from the generator, which belongs to the learner: it is saved, and undone with a step that fails. A
function of one's own may also draw from torch's global state (``augment=lambda x, _: my_transform(x)``): in training
that is the learner's own, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .batch import Batch, Tree, tree_leaves
from .checks import check_not_negative, check_positive
from .errors import InvalidInput, InvalidType
from .random import torch_generator
from .undo import Restore

Transform = Callable[[Tree, Generator], Tree]


class Crop:
    """Pad images on all sides and cut them back to their size at a random place: a shift by up to ``padding``."""

    def __init__(self, padding: int = 4, fill: float | None = None) -> None:
        """Set the size and the value of the border.

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

    def __repr__(self) -> str:
        """Name the settings."""
        return f"Crop(padding={self.padding})"


class Flip:
    """Mirror images left to right, each with probability ``p``."""

    def __init__(self, p: float = 0.5) -> None:
        """Set the probability."""
        check_not_negative(p=p)
        self.p = p

    def __call__(self, x: Tree, generator: Generator) -> Tensor:
        """Return images, some of them mirrored."""
        x = images(x)
        chosen = torch.rand(len(x), generator=generator).to(x.device) < self.p
        return torch.where(chosen.view(-1, *[1] * (x.ndim - 1)), x.flip(-1), x)

    def __repr__(self) -> str:
        """Name the settings."""
        return f"Flip(p={self.p})"


class Color:
    """Change brightness and contrast of each image by random factors."""

    def __init__(self, brightness: float = 0.2, contrast: float = 0.2) -> None:
        """Set how far the factors may lie from 1."""
        check_not_negative(brightness=brightness, contrast=contrast)
        self.brightness, self.contrast = brightness, contrast

    def __call__(self, x: Tree, generator: Generator) -> Tensor:
        """Return images of other brightness and contrast, in the range of their dtype (floats: unlimited)."""
        x = images(x)
        drawn = torch.rand(2, len(x), generator=generator).mul_(2).sub_(1).to(x.device)
        values = x if x.is_floating_point() else x.float()
        shape = (-1, *[1] * (x.ndim - 1))
        brightness = (1 + self.brightness * drawn[0]).to(values.dtype).view(shape)
        contrast = (1 + self.contrast * drawn[1]).to(values.dtype).view(shape)
        mean = values.flatten(1).mean(1).view(shape)
        changed: Tensor = ((values - mean) * contrast + mean) * brightness
        return changed if x.is_floating_point() else changed.round_().clamp_(0, 255).to(x.dtype)

    def __repr__(self) -> str:
        """Name the settings."""
        return f"Color(brightness={self.brightness}, contrast={self.contrast})"


class Chain:
    """One transform after the other."""

    def __init__(self, *transforms: Transform) -> None:
        """Set the transforms, the first one first."""
        self.transforms = transforms

    def __call__(self, x: Tree, generator: Generator) -> Tree:
        """Return transformed inputs."""
        for transform in self.transforms:
            x = transform(x, generator)
        return x

    def __repr__(self) -> str:
        """Name the transforms."""
        return f"Chain({', '.join(map(repr, self.transforms))})"


def images(x: Tree) -> Tensor:
    """Return a batch of images, or say that it is none: (samples, height, width) or (samples, channels, ...)."""
    if not isinstance(x, Tensor) or x.ndim not in (3, 4):
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InvalidInput(
            f"this augmentation takes images of shape (samples, channels, height, width), not {shape}; "
            "for other inputs write a function (x, generator) of your own"
        )
    return x


class Augmentation:
    """A learner's ``augment`` with random numbers of its own."""

    def __init__(self, transform: Transform, seed: int) -> None:
        """Set the transform, and start its generator.

        Raises:
            InvalidType: If the transform cannot be called.
        """
        if isinstance(transform, type) or not callable(transform):
            raise InvalidType(f"augment is {transform!r}; it must be a function (x, generator), such as Flip()")
        self.transform, self.generator = transform, torch_generator(seed, "augment")

    def __call__(self, batch: Batch) -> Batch:
        """Return a batch with transformed inputs."""
        versions, before = [leaf._version for leaf in tree_leaves(batch.x)], tree_leaves(batch.x)
        x = self.transform(batch.x, self.generator)
        if [leaf._version for leaf in before] != versions:
            raise InvalidInput("augment changes its inputs in place; let it work on a copy")
        leaves = tree_leaves(x)
        if not all(isinstance(leaf, Tensor) and leaf.shape[:1] == (len(batch),) for leaf in leaves):
            raise InvalidInput(f"augment must return as many samples as it gets, {len(batch)}, as tensors")
        return replace(batch, x=x)

    def snapshot(self) -> Restore:
        """Return a function that restores the random numbers."""
        return partial(self.generator.set_state, self.generator.get_state())

    def __getstate__(self) -> dict[str, Any]:
        """A generator is copied by its state."""
        return {"transform": self.transform, "state": self.generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what `__getstate__` returned."""
        self.transform, self.generator = state["transform"], Generator()
        self.generator.set_state(state["state"])
