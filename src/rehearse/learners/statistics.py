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
STATISTICS: Final = ("running_mean", "running_var", "num_batches_tracked")


def recalibrated_statistics(
    model: nn.Module,
    memory: Memory,
    forward: Callable[[Tree, dict[str, Tensor]], None],
    clean: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    """Batch-norm's buffers by name, its statistics being the cumulative average over the memory.

    At most 1,000 rows, a fixed draw that is the same every time, in batches of 100. Changes neither the model nor
    any random state: ``forward`` passes rows with the given buffers in place of the model's. Where there is nothing to
    estimate from, they are the model's own, or the ``clean`` ones.
    """
    names = estimated(model)
    slots = memory.slots()
    order = numpy_generator(0, "recalibrate").permutation(len(slots))[:ROWS]
    rows = memory.get(slots[torch.from_numpy(order)])
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    buffers |= {name: value.clone() for name, value in clean.items()}
    if len(rows) < 2:  # one row has no variance to estimate
        return {name: buffers[name] for name in names}
    for name in names:
        buffers[name].fill_(1) if name.endswith("running_var") else buffers[name].zero_()
    with torch.no_grad(), scoring_mode(model), _cumulative_average(model):
        for start in range(0, len(rows), BATCH):
            batch = rows.take(torch.arange(start, min(start + BATCH, len(rows))))
            if len(batch) > 1:
                forward(batch.x, buffers)
    return {name: buffers[name] for name in names}


def estimated(model: nn.Module) -> list[str]:
    """The names of the statistics that can be re-estimated: not those of layers that are left alone in training."""
    return [
        prefix + name
        for prefix, module in _named_batchnorms(model)
        if module.track_running_stats and not (model.training and not module.training)
        if all(getattr(module, name) is not None for name in STATISTICS)
        for name in STATISTICS
    ]


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
