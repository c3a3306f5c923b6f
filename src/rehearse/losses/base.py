"""What a loss is, and cross-entropy."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch, Kind, Tree, classes_are_last, no_labels
from ..errors import InvalidInput, InvalidType


@runtime_checkable
class Loss(Protocol):
    """A function that returns one value per sample.

    A loss that stores something of each sample beside its target also has a method ``columns(logits)``. It returns what
    to store as a dict of tensors, one entry per sample, from the logits of the incoming pass. At replay the loss finds
    it in ``batch.columns``.

    A loss whose samples do not all count alike in a mean has a method ``counts(batch)``, which returns what each counts
    for, or None: the mean loss of a batch is then the sum of the values divided by that of the counts. A sample that
    came with a weight counts so many times.
    """

    kind: Kind | None
    """What the model's outputs mean: logits of ``classes`` in dimension 1 (one is right), of ``tokens`` (classes in the
    last dimension), of ``labels`` (any number is right), or the ``values`` themselves; None if the targets decide. For
    a model with several heads it may be a tuple or dict of them."""

    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""


def class_targets(logits: Tensor, y: Tensor, ignored: int | None = None) -> Tensor:
    """Return the labels as cross-entropy wants them, or raise an error that says what is wrong with them."""
    if y.is_floating_point() or y.dtype == torch.bool:
        raise InvalidType(no_labels(logits, y))
    if logits.ndim < 2 or y.shape != logits.shape[:1] + logits.shape[2:]:
        raise InvalidInput(no_labels(logits, y))
    labels, outputs = y.long(), logits.shape[1]
    known = labels if ignored is None else labels[labels != ignored]
    low, high = (int(bound) for bound in torch.aminmax(known)) if len(known) else (0, 0)
    if low < 0:
        advice = "nn.CrossEntropyLoss() ignores −100" if low == -100 else "classes are numbered from 0 on"
        raise InvalidInput(f"label {low} is negative; {advice}")
    if high >= outputs:
        raise InvalidInput(f"label {high} is outside the model's {outputs} outputs; grow the head, or renumber labels")
    return labels


def class_logits(logits: Tree, y: Tree, dim: int | None = None) -> Tensor:
    """Return logits as torch's losses want them, in float32 or better and with the classes in dimension 1.

    Args:
        logits: The model's.
        y: The targets: the shape of labels shows where the classes are.
        dim: Where they are, 1 or −1, if that is known; 1 also where there are none.

    Raises:
        InvalidInput: If the classes may be in either of two dimensions.
        InvalidType: If there are several outputs or targets, which only a loss of the user's own can judge.
    """
    if not isinstance(logits, Tensor) or not isinstance(y, Tensor):
        given = f"outputs in a {type(logits).__name__} and targets in a {type(y).__name__}"
        own = "a function (outputs, y) that returns one value per sample"
        raise InvalidType(f"this loss takes one tensor of each, not {given}; write your own loss: {own}")
    found = at_least_float32(logits)
    if found.ndim < 3 or dim == 1:
        return found
    if dim is None and found.shape[:-1] == y.shape == found.shape[:1] + found.shape[2:]:
        where = f"the classes of outputs of shape {tuple(found.shape)} may be in dimension 1 or in the last"
        raise InvalidInput(f"{where}; say which: loss=as_loss(nn.CrossEntropyLoss(), dim=-1)")
    return found.movedim(-1, 1) if dim == -1 or classes_are_last(found, y) else found


class CrossEntropy:
    """ℓ = −log softmax(logits)[y]; for several labels per sample (of the tokens of a text, say) their mean."""

    def __init__(self, dim: int | None = None) -> None:
        """Say in which dimension the classes are: see `as_loss`."""
        self.dim = dim
        self.kind: Kind | None = "tokens" if dim == -1 else "classes"

    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""
        logits = class_logits(logits, batch.y, self.dim)
        y = batch.y.long() if replayed else class_targets(logits, batch.y)
        losses = F.cross_entropy(logits, y, reduction="none")
        return losses if losses.ndim == 1 else losses.flatten(1).mean(1)

    def with_gradient(self, logits: Tensor, batch: Batch, replayed: bool) -> tuple[Tensor, Tensor]:
        """Return the losses, and the gradient of their mean without autograd: (softmax(logits) − [c = y]) / n."""
        logs = F.log_softmax(class_logits(logits, batch.y), dim=1)
        y = batch.y.long() if replayed else class_targets(logits, batch.y)
        losses = F.nll_loss(logs, y, reduction="none")
        n = len(batch)
        gradient = logs.exp_().div_(n)
        gradient.scatter_add_(1, y[:, None], gradient.new_full((n, 1), -1 / n))
        return losses, gradient.to(logits.dtype)


def at_least_float32(logits: Tensor) -> Tensor:
    """Return logits in float32 or better: those of a bfloat16 pass are judged in float32."""
    return logits if logits.dtype == torch.float64 else logits.float()
