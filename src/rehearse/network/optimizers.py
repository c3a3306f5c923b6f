"""Copies of optimizers."""

from __future__ import annotations

import copy
from typing import Any

import torch


def copied_optimizer(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    """Return a deep copy with parameters of its own and without hooks or a replaced ``step``.

    Torch's copies lack what a subclass has noted outside of its groups and its state, and its step may need that.
    """
    copied = copy.deepcopy(optimizer, memo)
    own = {name: value for name, value in vars(optimizer).items() if name not in {*vars(copied), "step"}}
    vars(copied).update(copy.deepcopy(own, memo))
    return copied
