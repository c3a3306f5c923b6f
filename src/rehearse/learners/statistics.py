"""Batch-norm statistics beside those of the model: re-estimated from a memory, or kept through other passes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..batch import Tree
from ..compute import batchnorms, numpy_generator, scoring_mode
from ..memory import Memory

ROWS: Final = 1000
BATCH: Final = 100


def recalibrated_statistics(
    model: nn.Module,
    memory: Memory,
    forward: Callable[[Tree, dict[str, Tensor]], None],
    clean: Mapping[str, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The model's buffers with batch-norm's statistics as the cumulative average over the memory.

    At most 1,000 rows, a fixed draw that is the same every time, in batches of 100. Changes neither the model nor
    any random state: ``forward`` passes rows with the given buffers in place of the model's. Where there is nothing to
    estimate from, they are the model's own, or the ``clean`` ones.
    """
    slots = memory.slots()
    order = numpy_generator(0, "recalibrate").permutation(len(slots))[:ROWS]
    rows = memory.get(slots[torch.from_numpy(order)])
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    buffers |= {name: value.clone() for name, value in (clean or {}).items()}
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


class KeptStatistics:
    """Batch-norm's running statistics, held beside the model's and moved by the passes inside `following` alone.

    Each layer passes its input a second time, with these statistics in the place of its own: the same computation, so
    that they end bit for bit as in a model that saw those passes and no others.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.values = {
            name + key: buffer.clone()
            for name, module in _named_batchnorms(model)
            for key, buffer in module._buffers.items()
            if buffer is not None
        }

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        named = list(_named_batchnorms(self._model))
        hooks = [module.register_forward_hook(self._mover(name), with_kwargs=True) for name, module in named]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _mover(self, name: str) -> Callable[[nn.Module, Any, Any, Any], None]:
        def move(module: nn.Module, inputs: Any, keywords: Any, _: Any) -> None:
            own = {key: buffer for key, buffer in module._buffers.items() if buffer is not None}
            try:
                module._buffers.update({key: self.values[name + key] for key in own})
                with torch.no_grad():
                    module.forward(*inputs, **keywords)
            finally:
                module._buffers.update(own)

        return move

    def copy(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.values.items()}

    def load(self, values: dict[str, Tensor]) -> None:
        """Take back what `copy` gave."""
        for name, value in self.values.items():
            value.copy_(values[name])

    def to(self, device: torch.device | str) -> None:
        self.values = {name: value.to(device) for name, value in self.values.items()}


def _named_batchnorms(model: nn.Module) -> Iterator[tuple[str, _BatchNorm]]:
    """Each batch-norm with what the names of its buffers begin with."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            yield f"{name}." if name else "", module
