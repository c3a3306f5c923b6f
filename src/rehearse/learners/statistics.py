"""Batch-norm statistics re-estimated from a memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..batch import Tree
from ..compute import batchnorms, numpy_generator, scoring_mode
from ..memory import Memory

ROWS: Final = 1000
BATCH: Final = 100


def recalibrated_statistics(
    model: nn.Module, memory: Memory, forward: Callable[[Tree, dict[str, Tensor]], None]
) -> dict[str, Tensor]:
    """The model's buffers with batch-norm's statistics as the cumulative average over the memory.

    At most 1,000 rows, a fixed draw that is the same every time, in batches of 100. Changes neither the model nor
    any random state: ``forward`` passes rows with the given buffers in place of the model's.
    """
    slots = memory.slots()
    order = numpy_generator(0, "recalibrate").permutation(len(slots))[:ROWS]
    rows = memory.get(slots[torch.from_numpy(order)])
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    if len(rows) < 2:  # one row has no variance to estimate
        return buffers
    for name, module in model.named_modules():
        frozen = model.training and not module.training  # left alone in training, so here too
        if isinstance(module, _BatchNorm) and module.track_running_stats and not frozen:
            prefix = f"{name}." if name else ""
            buffers[f"{prefix}running_mean"].zero_()
            buffers[f"{prefix}running_var"].fill_(1)
            buffers[f"{prefix}num_batches_tracked"].zero_()
    with torch.no_grad(), scoring_mode(model), _cumulative_average(model):
        for start in range(0, len(rows), BATCH):
            batch = rows.take(torch.arange(start, min(start + BATCH, len(rows))))
            if len(batch) > 1:
                forward(batch.x, buffers)
    return buffers


@contextlib.contextmanager
def _cumulative_average(model: nn.Module) -> Iterator[None]:
    """Without a momentum, batch-norm averages all batches it has seen with equal weight."""
    momenta = [(module, module.momentum) for module in batchnorms(model)]
    try:
        for module, _ in momenta:
            module.momentum = None
        yield
    finally:
        for module, momentum in momenta:
            module.momentum = momentum
