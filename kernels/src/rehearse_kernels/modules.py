"""Questions about modules, and the running statistics of batch-norm."""

from __future__ import annotations

from typing import Final

from torch import Tensor, nn
from torch.nn.modules import module as global_hooks

HOOKS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Return whether this module has hooks."""
    attributes = vars(module)
    return any(attributes[kind] for kind in HOOKS)


def has_global_hooks() -> bool:
    """Return whether there are hooks on all modules."""
    return bool(
        global_hooks._global_forward_hooks
        or global_hooks._global_forward_pre_hooks
        or global_hooks._global_backward_hooks
        or global_hooks._global_backward_pre_hooks
    )


def is_unchanged(module: nn.Module) -> bool:
    """Return whether this module has no hooks and computes with the forward of its class."""
    return "forward" not in vars(module) and not has_hooks(module)


def runs_in_order(kind: type[nn.Module]) -> bool:
    """Return whether a subclass of `nn.Sequential` calls its modules in order, as `nn.Sequential` does."""
    return all(getattr(kind, name) is getattr(nn.Sequential, name) for name in ("forward", "__call__", "__iter__"))


def move_statistics(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor) -> None:
    """Update the running statistics with those of a batch, as torch does.

    Args:
        norm: the layer whose running statistics are updated in place, if it tracks them.
        mean: the mean of each channel.
        variance: the unbiased variance of each channel.
    """
    if not norm.track_running_stats or norm.running_mean is None or norm.running_var is None:
        return
    share = norm.momentum or 0.0
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None:
            share = 1 / float(norm.num_batches_tracked)
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(variance, share)
