"""What a loss is, and cross-entropy."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch, Kind
from ..errors import InvalidInput, InvalidType


@runtime_checkable
class Loss(Protocol):
    """A function that returns one value per sample.

    A loss that stores something of each sample beside its target also has a method ``columns(logits)``. It returns what
    to store as a dict of tensors, one entry per sample, from the logits of the incoming pass. At replay the loss finds
    it in ``batch.columns``.
    """

    kind: Kind | None
    """What the model's outputs mean: logits of ``classes`` (one is right), of ``labels`` (any number is right), or the
    ``values`` themselves; None if the targets decide."""

    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""


def columns_to_store(loss: Loss, logits: Tensor) -> dict[str, Tensor]:
    """Return what this loss wants stored of samples with these logits."""
    columns = getattr(loss, "columns", None)
    return {} if columns is None else dict(columns(logits))


def class_targets(logits: Tensor, y: Tensor) -> Tensor:
    """Return the labels as cross-entropy wants them, or raise an error that says what is wrong with them."""
    if y.is_floating_point() or y.dtype == torch.bool:
        raise InvalidType(f"class labels must be integers, these are {y.dtype}; for values pass loss=nn.MSELoss()")
    if logits.ndim < 2 or y.shape != logits.shape[:1] + logits.shape[2:]:
        raise InvalidInput(f"labels of shape {tuple(y.shape)} do not fit outputs of shape {tuple(logits.shape)}")
    y, outputs = y.long(), logits.shape[1]
    low, high = (int(bound) for bound in torch.aminmax(y))
    if low < 0:
        raise InvalidInput(f"label {low} is negative; classes are numbered from 0 on")
    if high >= outputs:
        raise InvalidInput(f"label {high} is outside the model's {outputs} outputs; grow the head, or renumber labels")
    return y


class CrossEntropy:
    """ℓ = −log softmax(logits)[y]."""

    kind: Kind | None = "classes"

    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""
        y = batch.y.long() if replayed else class_targets(logits, batch.y)
        losses = F.cross_entropy(at_least_float32(logits), y, reduction="none")
        return losses if losses.ndim == 1 else losses.flatten(1).mean(1)

    def with_gradient(self, logits: Tensor, batch: Batch, replayed: bool) -> tuple[Tensor, Tensor]:
        """Return the losses, and the gradient of their mean without autograd: (softmax(logits) − [c = y]) / n."""
        y = batch.y.long() if replayed else class_targets(logits, batch.y)
        logs = F.log_softmax(at_least_float32(logits), dim=1)
        losses = F.nll_loss(logs, y, reduction="none")
        n = len(batch)
        gradient = logs.exp_().div_(n)
        gradient.scatter_add_(1, y[:, None], gradient.new_full((n, 1), -1 / n))
        return losses, gradient.to(logits.dtype)


def per_sample(values: Tensor, samples: int) -> Tensor:
    """Return one value per sample: the mean over whatever other dimensions there are."""
    if values.ndim == 0 or len(values) != samples:
        raise InvalidInput(f"the loss returned {tuple(values.shape)}, not one value per sample; use reduction='none'")
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def at_least_float32(logits: Tensor) -> Tensor:
    """Return logits in float32 or better: those of a bfloat16 pass are judged in float32."""
    return logits if logits.dtype == torch.float64 else logits.float()
