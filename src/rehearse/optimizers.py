"""What is asked of an optimizer beside its steps."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import optimizer as global_hooks


def rate(group: Mapping[str, Any]) -> float:
    """Return α of a parameter group, negative if it maximizes."""
    return float(group["lr"]) * (-1 if group.get("maximize") else 1)


def is_plain_sgd(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether a step is θ − α∇ℓ and nothing else: no momentum, weight decay, hooks or replaced ``step``."""
    return (
        type(optimizer) is torch.optim.SGD
        and "step" not in vars(optimizer)
        and not (optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks)
        and not (global_hooks._global_optimizer_pre_hooks or global_hooks._global_optimizer_post_hooks)
        and not any(g["momentum"] or g["weight_decay"] or g["differentiable"] for g in optimizer.param_groups)
    )


def copied_optimizer(optimizer: torch.optim.Optimizer, memo: dict[int, Any]) -> torch.optim.Optimizer:
    """Return a deep copy with parameters of its own and without hooks or a replaced ``step``.

    Torch's copies lack what a subclass has noted outside of its groups and its state, and its step may need that.
    """
    copied = copy.deepcopy(optimizer, memo)
    own = {name: value for name, value in vars(optimizer).items() if name not in {*vars(copied), "step"}}
    vars(copied).update(copy.deepcopy(own, memo))
    return copied
