"""Widen the first layer, and the stored samples with it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from ..heads import linear_layers
from ..learners import Replay


def input_width(learner: Replay) -> int:
    """Return how many features the first layer takes."""
    return _first_linear(learner.model).in_features


def widen_inputs(learner: Replay, features: int) -> None:
    """Let samples have ``features`` features: new weights, optimizer state and stored values are zero.

    A feature that was never there is one that was always zero, and a weight of zero says the same: predictions and
    everything learned stay, and the gradient of the new weights is that of any other.
    """
    layer = _first_linear(learner.model)
    weight, added = layer.weight, features - layer.in_features
    if added <= 0:
        return
    for name, value in learner.optimizer.state.get(weight, {}).items():
        if isinstance(value, Tensor) and value.shape == weight.shape:
            learner.optimizer.state[weight][name] = F.pad(value, (0, added))
    weight.data = F.pad(weight.data, (0, added))
    layer.in_features = features
    memory = learner.memory.state_dict()
    if memory["x"] is not None:
        learner.memory.load_state_dict({**memory, "x": F.pad(memory["x"], (0, added))})


def _first_linear(model: nn.Module) -> nn.Linear:
    return next(iter(linear_layers(model).values()))
