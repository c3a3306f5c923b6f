"""The networks of specs, by name."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from ..errors import InvalidInput
from ..nets import MLP, GatedMLP, ReducedResNet18
from .extensions import find

NETWORKS: dict[str, Callable[[int, tuple[int, ...]], nn.Module]] = {
    "gated": lambda classes, shape: GatedMLP(math.prod(shape), classes=classes),
    "mlp": lambda classes, shape: MLP(math.prod(shape), classes=classes),
    "resnet18": lambda classes, shape: ReducedResNet18(classes, input_shape=_image(shape)),
    "resnet18-groupnorm": lambda classes, shape: ReducedResNet18(classes, input_shape=_image(shape), norm="group"),
}
"""How to build a network for so many classes and inputs of that shape."""


def make_network(name: str, *, classes: int, input_shape: tuple[int, ...]) -> nn.Module:
    """Return a new network of that name."""
    return find(NETWORKS, "network", name)(classes, input_shape)


def _image(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise InvalidInput(f"this network takes images (channels, height, width); the inputs have shape {shape}")
    return shape[0], shape[1], shape[2]
