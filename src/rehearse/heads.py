"""The last layer: find it, and see what goes into it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import Tensor, nn

from .errors import InvalidInput


def find_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """The linear layer that makes the class scores, and its name: ``model.head`` if there is one, else the last."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if "head" in layers:
        return "head", layers["head"]
    if not layers:
        raise InvalidInput(f"{type(model).__name__} has no linear layer; a head is needed here")
    name = next(reversed(layers))
    return name, layers[name]


@contextlib.contextmanager
def head_inputs(head: nn.Linear) -> Iterator[list[Tensor]]:
    """Inside the block, what enters the head is collected: the features that the body made."""
    seen: list[Tensor] = []
    handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    try:
        yield seen
    finally:
        handle.remove()
