"""Losses of torch and of users, as a `Loss`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..batch import Batch, Kind, tree_map
from ..described import short
from ..errors import InvalidInput, InvalidType, RehearseError
from .base import CrossEntropy, Loss, at_least_float32, class_logits, class_targets


class _FromModule:
    """One of torch's loss modules, by sample; the mean over a batch is the module's own."""

    def __init__(self, module: nn.Module, dim: int | None) -> None:
        self._module, self.dim, self._sums = copy.copy(module), dim, module.reduction == "batchmean"
        self._module.reduction = "none"  # type: ignore[assignment]
        self._classes = isinstance(module, nn.CrossEntropyLoss | nn.NLLLoss | nn.MultiMarginLoss)
        labels = isinstance(module, nn.BCEWithLogitsLoss | nn.MultiLabelSoftMarginLoss)
        classes: Kind = "tokens" if dim == -1 else "classes"
        self.kind: Kind | None = classes if self._classes else "labels" if labels else "values"
        self.ignored: int | None = getattr(module, "ignore_index", None)

    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""
        y, found = batch.y, class_logits(logits, batch.y, self.dim if self._classes else 1)
        if not self._classes:
            y = _value_targets(found, y)
        elif isinstance(self._module, nn.CrossEntropyLoss) and y.is_floating_point() and y.shape == logits.shape:
            y = (y.movedim(-1, 1) if self.dim == -1 else y).to(found.dtype)  # a probability for each class
        else:
            y = y.long() if replayed else class_targets(found, y, self.ignored)
        losses = _judge(self._module, found, y)
        return losses.flatten(1).sum(1) if self._sums else per_sample(losses, len(batch))

    def counts(self, batch: Batch) -> Tensor | None:
        """Return the mean weight of each sample's classes, where an ignored target weighs 0; torch divides by these."""
        weight, y = getattr(self._module, "weight", None), batch.y.long()
        if self.ignored is None or batch.y.is_floating_point():
            return None
        ignored = y == self.ignored
        if weight is None and not bool(ignored.any()):
            return None
        counts = torch.ones(y.shape, device=y.device) if weight is None else weight[y.masked_fill(ignored, 0)]
        return per_sample(counts.masked_fill(ignored, 0), len(batch))

    def __repr__(self) -> str:
        return repr(self._module)


class _FromCallable:
    """A user's ``(logits, y)``, or ``(logits, batch, replayed)`` if it is ``full``."""

    def __init__(self, function: Callable[..., Tensor], full: bool) -> None:
        self._function, self._full, self.counts = function, full, getattr(function, "counts", None)
        self.kind: Kind | None = getattr(function, "kind", None)  # None: the targets decide

    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""
        n, arguments = len(batch), (batch, replayed) if self._full else (batch.y,)
        values = _judge(self._function, tree_map(at_least_float32, logits), *arguments)
        if n > 1 and [getattr(one, "shape", ()) for one in (values, logits, batch.y)] == [(n, n), (n, 1), (n,)]:
            compared = f"the loss compares outputs of shape ({n}, 1) with targets of shape ({n},), each with all"
            raise InvalidInput(f"{compared}; give targets of shape (samples, 1), or squeeze the outputs in your loss")
        return per_sample(values, n)

    def __repr__(self) -> str:
        return short(self._function)


def as_loss(loss: Any, dim: int | None = None) -> Loss:
    """Return any of the accepted forms as a `Loss`; None is cross-entropy.

    Args:
        loss: One of torch's loss modules, a function, or a `Loss`.
        dim: For None and a loss module of torch: where the classes are in outputs of more than two dimensions, 1
            (torch's convention) or −1 (that of language models). By default the labels' shape shows it: (N, C, T) and
            (N, T, C) both have labels (N, T). Outputs that could be either are refused.
    """
    if dim not in (None, 1, -1):
        raise InvalidInput(f"dim is {dim!r}; the classes are in dimension 1 or −1")
    if loss is None or isinstance(loss, nn.modules.loss._Loss):
        return CrossEntropy(dim) if loss is None else _FromModule(loss, dim)
    if dim is not None:
        raise InvalidInput("dim is for losses of torch; give your own an attribute kind: 'tokens' or 'classes'")
    if isinstance(loss, type) or not callable(loss):
        raise InvalidType(f"the loss must be callable, this is {loss!r}; use nn.CrossEntropyLoss(), for example")
    try:
        parameters = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()
    except (TypeError, ValueError):
        return loss if isinstance(loss, Loss) else _FromCallable(loss, full=False)
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if isinstance(loss, Loss) and len(needed) != 2:  # a function (outputs, y) may have a kind too
        return loss
    return _FromCallable(loss, full=len(needed) == 3)


def per_sample(values: Tensor, samples: int) -> Tensor:
    """Return one value per sample: the mean over whatever other dimensions there are."""
    if values.ndim == 0 or len(values) != samples:
        raise InvalidInput(f"the loss returned {tuple(values.shape)}, not one value per sample; use reduction='none'")
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def counted(values: Tensor, loss: Loss, batch: Batch) -> Tensor:
    """Return values to add to those of a loss: as much of them as each sample counts for."""
    counts = batch.counts(loss)
    return values if counts is None else values * counts.to(values)


def _judge(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Call the user's loss; torch's errors become ours."""
    try:
        return function(*arguments)
    except RehearseError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as problem:
        raise InvalidInput(f"the loss cannot judge this batch: {problem}") from problem


def _value_targets(logits: Tensor, y: Tensor) -> Tensor:
    """Return targets with the shape of the outputs: a model with one output accepts plain numbers."""
    if y.numel() != logits.numel() or len(y) != len(logits):
        raise InvalidInput(f"targets of shape {tuple(y.shape)} do not fit outputs of shape {tuple(logits.shape)}")
    return y.to(logits.dtype).reshape(logits.shape)
