"""Losses of torch and of users, as a `Loss`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..batch import Batch, Kind
from ..described import short
from ..errors import InvalidInput, InvalidType, RehearseError
from .base import CrossEntropy, Loss, at_least_float32, class_targets, per_sample


class _FromModule:
    """One of torch's loss modules, without its reduction and averaged by sample."""

    def __init__(self, module: nn.Module) -> None:
        self._module = copy.copy(module)
        self._module.reduction = "none"  # type: ignore[assignment]
        self._classes = isinstance(module, nn.CrossEntropyLoss | nn.NLLLoss | nn.MultiMarginLoss)
        labels = isinstance(module, nn.BCEWithLogitsLoss | nn.MultiLabelSoftMarginLoss)
        self.kind: Kind | None = "classes" if self._classes else "labels" if labels else "values"

    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""
        logits, y = at_least_float32(logits), batch.y
        if not self._classes:
            y = _value_targets(logits, y)
        elif isinstance(self._module, nn.CrossEntropyLoss) and y.is_floating_point() and y.shape == logits.shape:
            y = y.to(logits.dtype)  # a probability for each class
        else:
            y = y.long() if replayed else class_targets(logits, y)
        return per_sample(_judge(self._module, logits, y), len(batch))

    def __repr__(self) -> str:
        return repr(self._module)


class _FromCallable:
    """A user's ``(logits, y)``, or ``(logits, batch, replayed)`` if it is ``full``."""

    def __init__(self, function: Callable[..., Tensor], full: bool) -> None:
        self._function, self._full = function, full
        self.kind: Kind | None = getattr(function, "kind", None)  # None: the targets decide

    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""
        n, arguments = len(batch), (batch, replayed) if self._full else (batch.y,)
        values = _judge(self._function, at_least_float32(logits), *arguments)
        if n > 1 and values.shape == (n, n) and logits.shape == (n, 1) and batch.y.shape == (n,):
            compared = f"the loss compares outputs of shape ({n}, 1) with targets of shape ({n},), each with all"
            raise InvalidInput(f"{compared}; give targets of shape (samples, 1), or squeeze the outputs in your loss")
        return per_sample(values, n)

    def __repr__(self) -> str:
        return short(self._function)


def as_loss(loss: Any) -> Loss:
    """Return any of the accepted forms as a `Loss`; None is cross-entropy."""
    if loss is None:
        return CrossEntropy()
    if isinstance(loss, nn.modules.loss._Loss):
        return _FromModule(loss)
    if isinstance(loss, type) or not callable(loss):
        raise InvalidType(f"the loss must be callable, this is {loss!r}; use nn.CrossEntropyLoss(), for example")
    if isinstance(loss, Loss):
        return loss
    try:
        parameters = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()
    except (TypeError, ValueError):
        return _FromCallable(loss, full=False)
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return _FromCallable(loss, full=len(needed) == 3)


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
