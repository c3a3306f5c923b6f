"""SharedEngine: gradients of the batch that all ranks have together."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from ..batch import Batch
from ..engine import Layers, Passed, Plain
from ..errors import InvalidInput
from ..network import NamedGradient, Tensors, VirtualStep
from ..undo import Operations
from .ranks import Ranks


class SharedGradient(NamedTuple):
    """The gradient of an incoming batch and of replayed samples: of all ranks, or (``mass`` > 0) of this one's own."""

    incoming: NamedGradient
    samples: int
    mass: float
    replayed: NamedGradient
    replayed_mass: float = 0.0
    weight: float = 1.0

    def plus(self, other: SharedGradient, weight: float = 1.0) -> SharedGradient:
        """Return self + weight × other, where the other is of replayed samples."""
        return self._replace(replayed=other.incoming, replayed_mass=other.mass, weight=weight)


class SharedEngine(Plain):
    """The engine of a rank: its own passes, and the gradient of all ranks.

    Rank r has n_r incoming samples with the mean loss ℓ_r, and m_r replayed ones with the mean loss ρ_r, where n and m
    count sample weights and what the loss counts for (Σ w c, as in `Batch.mean_loss`). All ranks step along

        ∇ [ Σ n_r ℓ_r / Σ n_r  +  replay_weight · Σ m_r ρ_r / Σ m_r ]

    which is the gradient of one process with all incoming and all replayed samples. It is summed once, in `step`; if
    the retrieval needs the gradient of the incoming samples, that is summed before. Running statistics of batch-norm go
    with the gradient, and become the average over the ranks.
    """

    def __init__(self, plain: Plain, ranks: Ranks, *, early: bool) -> None:
        """Compute what ``plain`` would, with other ranks.

        Args:
            plain: The engine of this rank alone.
            ranks: The other ranks.
            early: Whether the gradient of the incoming batch is needed before the step.
        """
        super().__init__(plain.network, plain.loss, plain.batchnorm)
        self.ranks, self.early, self.cut, self._offers = ranks, early, plain.cut, []
        self.step = self.shared_step
        network = plain.network
        if network.observer is not None:
            what = f"{type(network.observer).__name__} learns from the inputs of its own rank"
            raise InvalidInput(f"{what}, and models would be fed differently: prepare by fixed statistics instead")
        if any(isinstance(module, nn.SyncBatchNorm) for module in network.model.modules()):
            raise InvalidInput("SyncBatchNorm waits for ranks that may have nothing to replay; use BatchNorm layers")
        if kinds := {type(module).__name__ for module in network.model.modules() if _tracks_alone(module)}:
            kept = f"{' and '.join(sorted(kinds))} keeps running statistics that are not averaged over the ranks"
            raise InvalidInput(f"{kept}: use it with track_running_stats=False, or BatchNorm layers")
        if self.batchnorm.joint and network.has_batchnorm:
            raise InvalidInput("batchnorm='joint' is not distributed: choose 'auto', 'clean' or 'recalibrated'")

    def gradient(
        self, batch: Batch, *, replayed: bool, tensors: Tensors | None = None, dtype: torch.dtype | None = None
    ) -> Passed:
        """See `Engine.gradient`; the losses are those of this rank."""
        passed = super().gradient(batch, replayed=replayed, tensors=tensors, dtype=dtype)
        gradient = SharedGradient(passed.gradient, len(batch), self._mass(batch), NamedGradient())
        if self.early and not replayed:
            gradient = gradient._replace(incoming=self._averaged("a gradient", gradient), mass=0.0)
        return passed._replace(gradient=gradient)

    def joint_gradient(self, incoming: Batch, replayed: Batch, weight: float) -> Passed:
        """See `Engine.joint_gradient`; two passes, because how the losses weigh among the ranks is not known yet."""
        first, second = self.gradient(incoming, replayed=False), self.gradient(replayed, replayed=True)
        return first._replace(gradient=first.gradient.plus(second.gradient, weight), replayed_loss=second.loss)

    def losses(
        self, batch: Batch, gradient: Any = None, *, virtual_step: VirtualStep = "sgd", layers: Layers = "all"
    ) -> tuple[Tensor, Tensor]:
        """See `Engine.losses`."""
        return super().losses(batch, gradient and self.named(gradient), virtual_step=virtual_step, layers=layers)

    def named(self, gradient: SharedGradient) -> NamedGradient:  # type: ignore[override]
        """See `Engine.named`."""
        return gradient.incoming

    def shared_step(self, gradient: SharedGradient) -> Operations:
        """See `Engine.step`."""
        summed = self._averaged("a step", gradient)
        return self.network.step(gradient.incoming.plus(summed) if self.early else summed)

    def _mass(self, batch: Batch) -> float:
        (batch,) = self.cut(batch)
        counts = batch.counts(self.loss)
        return float(batch.weighted(torch.ones(len(batch)) if counts is None else counts.cpu().float()).sum())

    def _averaged(self, act: str, own: SharedGradient) -> NamedGradient:
        """Return the gradient of all ranks' samples, as far as it has not been summed yet; empty if there are none."""
        table = self.ranks.agree(act, own.samples, own.mass, own.replayed_mass)
        self.ranks.arriving = table[:, 0].int().tolist()
        _, mass, replayed_mass = table[:, :3].sum(0).tolist()
        if act == "a step" and self.early and not replayed_mass:
            return NamedGradient()
        shared = NamedGradient()
        if own.mass:
            shared = shared.plus(own.incoming, own.mass / mass)
        if own.replayed_mass:
            shared = shared.plus(own.replayed, own.weight * own.replayed_mass / replayed_mass)
        return self._summed(shared)

    @torch.no_grad()
    def _summed(self, gradient: NamedGradient) -> NamedGradient:
        """Return the sum over all ranks, exchanged with the running statistics and which parameters have a gradient."""
        parameters = {name: parameter for name, (parameter, _) in self.network.trainable().items()}
        statistics = running_statistics(self.network.model)
        values = [gradient.get(name, torch.zeros_like(parameter)) for name, parameter in parameters.items()]
        present = values[0].new_tensor([name in gradient for name in parameters])
        parts = [present, *(buffer / self.ranks.count for buffer in statistics), *values]
        flat = torch.cat([part.reshape(-1) for part in parts])
        self.ranks.sum(flat)
        sizes = [part.numel() for part in parts]
        present, *sums = map(Tensor.view_as, torch.split(flat, sizes), parts)
        for buffer, total in zip(statistics, sums):
            buffer.copy_(total)
        totals = zip(parameters.items(), sums[len(statistics) :], present.tolist(), strict=True)
        return NamedGradient({name: total.to(own.dtype) for (name, own), total, ranks in totals if ranks})


def _tracks_alone(module: nn.Module) -> bool:
    """Return whether a layer keeps running statistics of its own rank's samples; `running_statistics` has others."""
    return isinstance(module, _NormBase) and not isinstance(module, _BatchNorm) and module.running_mean is not None


def running_statistics(model: nn.Module) -> list[Tensor]:
    """Return the running statistics of batch-norm layers that are in training, in one order on all ranks."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm) and module.training]
    return [b for norm in norms for b in (norm.running_mean, norm.running_var) if b is not None]
