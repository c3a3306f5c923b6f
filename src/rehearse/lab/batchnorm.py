"""The reference implementation's batch-norm mode, which only the paper's tables need."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..batchnorm import BatchNormPolicy
from ..checks import check, optional
from ..undo import Restore

Statistics = dict[str, Tensor]


class Published(BatchNormPolicy):
    """Candidates move the running statistics too, as in the reference implementation.

    Running statistics take no part in training, so the same training also has the statistics that candidates have not
    moved. A pass with momentum m makes (1 − m) r + m s of a statistic r. After k passes two that began at r and c
    differ by (1 − m)ᵏ (r − c), whatever the batches were: `clean` follows from what the policy notes when candidates
    move the statistics.
    """

    follows_scoring = True

    def __init__(self) -> None:
        """Start with the model's own statistics."""
        self._noted: tuple[Statistics, Statistics] | None = None  # after the last scoring: the model's, the clean ones

    @torch.no_grad()
    def scored(self, model: nn.Module, tensors: dict[str, Tensor]) -> None:
        """Copy the buffers that the scoring pass moved into the model."""
        clean = self.clean(model)
        for name, buffer in model.named_buffers():
            buffer.copy_(tensors[name])
        self._noted = _statistics(model), clean

    @property
    def moved(self) -> bool:
        """Whether candidates have moved the statistics."""
        return self._noted is not None

    @torch.no_grad()
    def clean(self, model: nn.Module) -> Statistics:
        """Return the statistics that candidates have not moved, by name."""
        now = _statistics(model)
        if self._noted is None:
            return now
        moved, clean = self._noted
        found = {}
        for name, module in _batchnorms(model):
            counter = f"{name}num_batches_tracked"
            passes = int(now[counter] - moved[counter])
            found[counter] = clean[counter] + passes
            for key in (f"{name}running_mean", f"{name}running_var"):
                remaining = (1 - (module.momentum or 0.0)) ** passes
                found[key] = now[key] + remaining * (clean[key] - moved[key])
        return found

    def snapshot(self) -> Restore:
        """Return a function that restores what was noted."""
        noted = self._noted

        def restore() -> None:
            self._noted = noted

        return restore

    def state_dict(self) -> dict[str, Any]:
        """Return what was noted."""
        return {"noted": None if self._noted is None else [dict(part) for part in self._noted]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        check(state, {"noted": optional([dict, dict])}, "the noted statistics")
        noted = state["noted"]
        self._noted = None if noted is None else (dict(noted[0]), dict(noted[1]))


def _batchnorms(model: nn.Module) -> list[tuple[str, _BatchNorm]]:
    named = [(f"{name}.".lstrip("."), module) for name, module in model.named_modules()]
    return [(n, m) for n, m in named if isinstance(m, _BatchNorm) and m.running_mean is not None]


def _statistics(model: nn.Module) -> Statistics:
    return {
        f"{name}{key}": buffer.clone()
        for name, module in _batchnorms(model)
        for key, buffer in module._buffers.items()
        if buffer is not None
    }
