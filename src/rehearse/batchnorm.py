"""Batch-norm policies: what moves the running statistics, and which statistics prediction uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from .batch import Tree
from .errors import InvalidInput
from .memory import Memory
from .random import numpy_generator
from .undo import Restore

SAMPLES: Final = 1000
BATCH: Final = 100
ENOUGH: Final = 200  # stored samples to re-estimate statistics from, for "auto"
Forward = Callable[[Tree, dict[str, Tensor]], object]
"""Passes stored inputs with these buffers in scoring mode, and moves the buffers."""


class BatchNormPolicy:
    """How a learner treats batch-norm. Others than the library's plug in by implementing this class."""

    follows_scoring: ClassVar[bool] = False
    """Whether `scored` is called after the candidates were scored."""
    joint: ClassVar[bool] = False
    """Whether incoming and replayed samples share one pass, and so one set of batch statistics."""

    def scored(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        """Receive the buffers as scoring under θ has moved them; the model's own have not moved.

        Args:
            model: The live model, whose buffers this method may write: the learner's undo restores them.
            tensors: All tensors of the scoring pass by name.
        """

    def statistics(self, model: nn.Module, memory: Memory, forward: Forward) -> dict[str, Tensor]:
        """Return the buffers to predict with in place of the model's own, by name; none by default."""
        return {}

    def __repr__(self) -> str:
        """Return the ``batchnorm`` argument that stands for it."""
        return repr(type(self).__name__.lower())

    def snapshot(self) -> Restore:
        """Return a function that restores the policy's own state; it has none by default."""
        return lambda: None

    def state_dict(self) -> dict[str, Any]:
        """Return what the policy needs to resume; nothing by default."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""


class Clean(BatchNormPolicy):
    """Incoming and replayed samples move the statistics, candidates do not; prediction uses the model's own."""


class Joint(BatchNormPolicy):
    """Incoming and replayed samples pass together and move the statistics once; candidates do not."""

    joint = True


class Recalibrated(BatchNormPolicy):
    """Train as `Clean`, predict with statistics that are re-estimated from the memory.

    They are the average over at most 1,000 stored samples in batches of 100, always the same ones, and are computed
    again only if the model or the memory has changed. The first prediction after a step pays for it.
    """

    def __init__(self, least: int = 2) -> None:
        """Set ``least``, the number of stored samples below which the model's own statistics are used."""
        self.least = least
        self._cached: tuple[list[Any], dict[str, Tensor]] = [], {}

    def __repr__(self) -> str:
        """Return the ``batchnorm`` argument that stands for it."""
        return repr("auto") if self.least == ENOUGH else super().__repr__()

    def statistics(self, model: nn.Module, memory: Memory, forward: Forward) -> dict[str, Tensor]:
        """Return the re-estimated statistics."""
        if len(memory) < self.least:
            return {}
        now = [id(memory), *versions(model, memory)]
        if now != self._cached[0]:
            with torch.autocast(next(model.parameters()).device.type, enabled=False):  # it outlives the caller's
                self._cached = now, _estimate(model, memory, forward)
        return self._cached[1]


def versions(model: nn.Module, memory: Memory) -> list[object]:
    """Return what is new whenever the model or the memory has changed, and with it what was computed from both."""
    tensors = [*model.parameters(), *model.buffers()]
    return [memory.changes, *((id(tensor), tensor._version) for tensor in tensors)]


@torch.no_grad()
def _estimate(model: nn.Module, memory: Memory, forward: Forward) -> dict[str, Tensor]:
    """Return the average of the batch statistics over the memory; the model's buffers are copied, not moved."""
    shares = _shares(model)
    if not shares:
        return {}
    slots = memory.slots()
    drawn = numpy_generator(0, "recalibrate").permutation(len(slots))[:SAMPLES]
    samples = memory.get(slots[torch.from_numpy(drawn)])
    averages = {name: torch.zeros_like(model.get_buffer(name)) for name in shares}
    for number, start in enumerate(range(0, len(samples) - 1, BATCH), 1):  # a lone last sample has no variance
        moved = {name: buffer.clone() for name, buffer in model.named_buffers()}
        for name in shares:
            moved[name].zero_()
            moved[f"{name.rpartition('running_')[0]}num_batches_tracked"].zero_()
        forward(samples.take(torch.arange(start, min(start + BATCH, len(samples)))).x, moved)
        for name, average in averages.items():
            average.lerp_(moved[name] / shares[name], 1 / number)
    return averages


def _shares(model: nn.Module) -> dict[str, float]:
    """Return how much of a batch's statistics one pass adds to each running statistic that is zero, by name.

    Statistics of layers that the user froze are left out.
    """
    return {
        f"{name}.{key}".lstrip("."): 1.0 if module.momentum is None else module.momentum
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.momentum != 0 and (module.training or not model.training)
        if module.running_mean is not None and module.num_batches_tracked is not None
        for key in ("running_mean", "running_var")
    }


def policy(batchnorm: str | BatchNormPolicy) -> BatchNormPolicy:
    """Return the policy of the ``batchnorm`` argument.

    Args:
        batchnorm: ``clean``, ``joint``, ``recalibrated``, ``auto`` (`Clean` below 200 stored samples, from then on
            `Recalibrated`), or a policy of one's own.

    Raises:
        InvalidInput: If it is anything else.
    """
    if isinstance(batchnorm, BatchNormPolicy):
        return batchnorm
    known = {"clean": Clean(), "joint": Joint(), "recalibrated": Recalibrated(), "auto": Recalibrated(least=ENOUGH)}
    if not isinstance(batchnorm, str) or batchnorm not in known:
        raise InvalidInput(f"batchnorm is {batchnorm!r}; it must be one of {', '.join(known)}, or a policy")
    return known[batchnorm]
