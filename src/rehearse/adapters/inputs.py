"""The first layer: give it more inputs, and the memory with it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import InvalidInput
from ..learners import Replay


def input_width(learner: Replay) -> int:
    """How many features the first layer takes."""
    return _first_linear(learner.model).in_features


def widen_inputs(learner: Replay, features: int) -> None:
    """Let rows have ``features`` columns: weights, the optimiser's state and remembered rows are filled with zeros.

    A feature that was never there is one that was always zero, and a weight of zero says the same: predictions and
    everything learned stay, and the gradient of the new weights is that of any other.
    """
    layer = _first_linear(learner.model)
    added = features - layer.in_features
    if added <= 0:
        return
    weight, width = layer.weight, layer.weight.shape
    for name, value in learner.optimizer.state.get(weight, {}).items():
        if isinstance(value, Tensor) and value.shape == width:
            learner.optimizer.state[weight][name] = F.pad(value, (0, added))
    with torch.no_grad():
        weight.data = F.pad(weight.data, (0, added))
    layer.in_features = features
    memory = learner.memory.state_dict()
    if memory["x"] is not None:
        memory["x"] = F.pad(memory["x"], (0, added))
        learner.memory.load_state_dict(memory)


def _first_linear(model: nn.Module) -> nn.Linear:
    for module in model.modules():
        if isinstance(module, nn.Linear):
            return module
    raise InvalidInput(f"{type(model).__name__} has no linear layer that could take in new features")
