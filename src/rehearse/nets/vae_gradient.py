"""Layers of a generator passed and differentiated by hand, with dropout; `rehearse.chain` does it for classifiers."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from ..chain import flattens_rows, listened_to, passes_rows_on, stopped
from .dropout import Dropout


class Layer(NamedTuple):
    """A linear layer by its name, with what follows it."""

    name: str
    linear: nn.Linear
    relu: bool = False
    dropout: Dropout | None = None


class Passed(NamedTuple):
    """What went into a layer, what came out of its ReLU, and what dropout multiplied that with."""

    layer: Layer
    inputs: Tensor
    outputs: Tensor
    kept: Tensor | None


def layers_of(network: nn.Module, name: str) -> list[Layer] | None:
    """The layers in order, if they are nothing but linear ones with a ReLU and dropout each, and nobody listens."""
    if not isinstance(network, nn.Sequential) or not passes_rows_on(type(network)) or listened_to(network):
        return None
    layers: list[Layer] = []
    for key, module in network._modules.items():
        if module is None or listened_to(module):
            return None
        if type(module) is nn.Linear and module.bias is not None:
            layers.append(Layer(f"{name}.{key}", module))
        elif type(module) is nn.ReLU and layers and layers[-1].dropout is None:
            layers[-1] = layers[-1]._replace(relu=True)
        elif type(module) is Dropout and layers and layers[-1].dropout is None:
            layers[-1] = layers[-1]._replace(dropout=module)
        elif not flattens_rows(module) or layers:
            return None
    return layers


def forward(layers: list[Layer], rows: Tensor) -> tuple[list[Passed], Tensor]:
    """Through all layers, and what their gradient needs."""
    passed: list[Passed] = []
    for layer in layers:
        outputs = F.linear(rows, layer.linear.weight, layer.linear.bias)
        if layer.relu:
            outputs = outputs.relu_()
        kept = None if layer.dropout is None else layer.dropout.mask(outputs)
        passed.append(Passed(layer, rows, outputs, kept))
        rows = outputs if kept is None else outputs * kept
    return passed, rows


def backward(passed: list[Passed], delta: Tensor, gradient: dict[str, Tensor], *, inputs: bool = True) -> Tensor:
    """Add the layers' gradients by name; gives Δ of what went in, if anybody wants to know it."""
    for number, (layer, rows, outputs, kept) in reversed(list(enumerate(passed))):
        if kept is not None:
            delta = delta * kept
        if layer.relu:
            delta = stopped(delta, outputs, 0)
        gradient[f"{layer.name}.weight"] = delta.t() @ rows
        gradient[f"{layer.name}.bias"] = delta.sum(0)
        if number or inputs:
            delta = delta @ layer.linear.weight
    return delta
