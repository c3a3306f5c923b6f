"""Batch-norm by whole lines of pixels, for scoring passes over images with few channels.

Channels-last, torch normalises a pixel's channels at once; where their number does not fill the processor's registers
it takes them one by one, and a channel's sum over all pixels loses digits. A line of w pixels is w · c numbers in a
row. Its positions are normalised as if they were w · c channels, with statistics that are put together first:

    mean = mean_w m_w,    variance = mean_w v_w + variance_w m_w
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .gradients import ReplacedForwards

REGISTER: Final = 8  # floats that a processor with AVX2 takes at once


def by_lines(modules: Iterable[nn.Module]) -> ReplacedForwards:
    """Inside the block, batch-norms whose channels fill no registers go line by line; where no gradient is taken."""
    return ReplacedForwards({module: _forward(module) for module in modules if _is_narrow(module)})


def _is_narrow(module: nn.Module) -> bool:
    plain = type(module) is nn.BatchNorm2d and "forward" not in vars(module)
    return plain and bool(vars(module)["num_features"] % REGISTER)


def _forward(module: nn.Module) -> Callable[[Tensor], Tensor]:
    assert isinstance(module, nn.BatchNorm2d)
    norm = module

    def forward(input: Tensor) -> Tensor:
        plain = norm.training and norm.weight is not None and norm.bias is not None and not torch.is_grad_enabled()
        if not plain or not _has_lines(input, norm.weight):
            return nn.BatchNorm2d.forward(norm, input)
        n, c, h, w = input.shape
        lines = input.permute(0, 2, 3, 1).reshape(n * h, w * c)
        means, variances = (each.view(w, c) for each in torch.batch_norm_update_stats(lines, None, None, 0.0))
        mean, variance = means.mean(0), variances.mean(0) + means.var(0, unbiased=False)
        move_statistics(norm, mean, variance * (n * h * w / (n * h * w - 1)))
        mean, variance, weight, bias = (values.repeat(w) for values in (mean, variance, norm.weight, norm.bias))
        normalised = F.batch_norm(lines, mean, variance, weight, bias, eps=norm.eps)
        return normalised.view(n, h, w, c).permute(0, 3, 1, 2)

    return forward


def _has_lines(x: Tensor, weight: Tensor) -> bool:
    """Whether these are images of more than a line, channels-last, in full precision and on a processor."""
    plain = x.ndim == 4 and x.dtype == weight.dtype == torch.float32 and x.device.type == "cpu"
    return plain and x.is_contiguous(memory_format=torch.channels_last) and x.shape[0] * x.shape[2] > 1


def move_statistics(norm: nn.BatchNorm2d, mean: Tensor, variance: Tensor) -> None:
    """Let the running statistics take in those of a batch, as torch does; the variance is the unbiased one."""
    if not norm.track_running_stats or norm.running_mean is None or norm.running_var is None:
        return
    share = norm.momentum or 0.0
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if norm.momentum is None:
            share = 1 / float(norm.num_batches_tracked)
    norm.running_mean.lerp_(mean, share)
    norm.running_var.lerp_(variance, share)
