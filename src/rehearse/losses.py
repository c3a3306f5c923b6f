"""How a batch is judged: one value a row.

A loss is called ``loss(scores, batch, recalled)``: ``recalled`` is False for the rows that arrive and True for
memories. Torch's loss modules and any callable ``(scores, y)`` with one value a row are accepted too.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, Literal, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .batch import Batch
from .errors import InvalidInput, InvalidType, RehearseError

Kind = Literal["classes", "labels", "values"]
DRAW = "draw"  # a column of recalled batches: which of several draws a row is of


@runtime_checkable
class Loss(Protocol):
    """One value a row. ``kind`` says what the model's outputs mean: scores of classes (one is right), of labels
    (any number is right), or the values themselves."""

    kind: Kind | None

    def __call__(self, scores: Tensor, batch: Batch, recalled: bool) -> Tensor: ...


@runtime_checkable
class Remembering(Loss, Protocol):
    """A loss that wants something kept of each row beside its target: `columns` makes it from the scores of the
    incoming pass, one entry a row, and the loss finds it again in ``batch.columns`` when the row is recalled."""

    def columns(self, scores: Tensor) -> dict[str, Tensor]: ...


def to_remember(loss: Loss, scores: Tensor) -> dict[str, Tensor]:
    """What this loss wants kept of the rows with these scores."""
    columns = getattr(loss, "columns", None)  # what isinstance(loss, Remembering) asks, without its 20 µs
    return {} if columns is None else dict(columns(scores))


def class_targets(scores: Tensor, y: Tensor) -> Tensor:
    """The labels as cross-entropy wants them, or a refusal that says what is wrong with them."""
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InvalidType(
            f"class labels must be integers, these are {y.dtype}; for values, or several labels a row, give a loss: "
            "loss=nn.MSELoss(), or nn.BCEWithLogitsLoss()"
        )
    if scores.ndim < 2 or y.shape != scores.shape[:1] + scores.shape[2:]:
        raise InvalidInput(
            f"labels of shape {tuple(y.shape)} do not fit the model's output of shape {tuple(scores.shape)}"
        )
    y = y.long()
    low, high = (int(bound) for bound in torch.aminmax(y))
    if low < 0:
        raise InvalidInput(f"label {low} is negative; classes are numbered from 0 on")
    if high >= scores.shape[1]:
        raise InvalidInput(
            f"label {high} is outside the model's {scores.shape[1]} outputs "
            f"(0 to {scores.shape[1] - 1}); grow the head first, or renumber the labels"
        )
    return y


class CrossEntropy:
    """ℓ = −log softmax(scores)[y]."""

    kind: Kind | None = "classes"

    def __call__(self, scores: Tensor, batch: Batch, recalled: bool) -> Tensor:
        y = batch.y.long() if recalled else class_targets(scores, batch.y)
        return per_row(F.cross_entropy(in_full(scores), y, reduction="none"), len(batch))

    def with_gradient(self, scores: Tensor, batch: Batch, recalled: bool) -> tuple[Tensor, Tensor]:
        """The losses, and the gradient of their mean without autograd: (softmax(scores) − [c = y]) / n."""
        y = batch.y.long() if recalled else class_targets(scores, batch.y)
        logs = F.log_softmax(in_full(scores), dim=1)
        losses = F.nll_loss(logs, y, reduction="none")
        n = len(batch)
        gradient = logs.exp_().div_(n)
        gradient.scatter_add_(1, y[:, None], gradient.new_full((n, 1), -1 / n))
        return per_row(losses, n), gradient.to(scores.dtype)


def soft_cross_entropy(scores: Tensor, probabilities: Tensor) -> Tensor:
    """−Σ q log softmax(scores), one value a row; classes that q does not know yet have probability 0.

    A class that the model rules out by a score of −∞ adds nothing where q is 0, and makes the loss infinite elsewhere.
    """
    scores, q = in_full(scores), _of_all_classes(probabilities, scores)
    lowest = torch.finfo(scores.dtype).min
    return F.cross_entropy(torch.where(q > 0, scores, scores.clamp_min(lowest)), q, reduction="none")


def soft_cross_entropy_with_gradient(scores: Tensor, probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """The same, and the gradient of its mean without autograd: (softmax(scores) Σ q − q) / n."""
    q = _of_all_classes(probabilities, scores)
    logs = F.log_softmax(in_full(scores), dim=1)
    losses = -torch.where(q > 0, q * logs, 0).sum(1)
    return losses, logs.exp_().mul_(q.sum(1, keepdim=True)).sub_(q).div_(len(scores))


def _of_all_classes(probabilities: Tensor, scores: Tensor) -> Tensor:
    unknown = scores.shape[1] - probabilities.shape[1]
    return F.pad(probabilities, (0, unknown)) if unknown else probabilities


class AsymmetricCrossEntropy:
    """ACE (Caccia et al. 2022): what arrives does not push away the classes that are not there.

        incoming   ℓ = −log ( exp(s_y) / Σ_{c ∈ C(B_n)} exp(s_c) )     over the classes of the incoming batch alone
        recalled   ℓ = −log ( exp(s_y) / Σ_c exp(s_c) )                over all outputs

    Differs from the source: recalled rows are judged over all outputs instead of all classes seen so far, so that the
    loss needs no state; outputs of classes that never came are only ever pushed down.
    """

    kind: Kind | None = "classes"

    def __call__(self, scores: Tensor, batch: Batch, recalled: bool) -> Tensor:
        scores = in_full(scores)
        y = batch.y.long() if recalled else class_targets(scores, batch.y)
        if not recalled:
            absent = torch.ones(scores.shape[1], dtype=torch.bool, device=scores.device)
            absent[y] = False
            scores = scores.masked_fill(absent.view(-1, *[1] * (scores.ndim - 2)), -torch.inf)
        return per_row(F.cross_entropy(scores, y, reduction="none"), len(batch))


class DarkExperience:
    """DER++ (Buzzega et al. 2020): memories are recalled with the scores that the network gave them when they came.

        incoming   ℓ
        recalled   α · mean_c (s_c − s̃_c)² + β · ℓ          s̃: the logits stored when the row arrived

    with ℓ the ``loss``, cross-entropy unless said otherwise; β = 0 is DER. The mean is over the logits that were
    stored: a head that has grown since has more outputs, of which the memory knows nothing.

    Differs from the source: one recalled batch bears both terms. Recalled by `retrieval.Draws(…, 2)`, the first draw
    bears the α term and the second the β term, as published.
    """

    def __init__(self, alpha: float = 0.1, beta: float = 0.5, loss: Any = None) -> None:
        for name, weight in (("alpha", alpha), ("beta", beta)):
            if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < float("inf"):
                raise InvalidInput(f"{name} is {weight!r}; the weight of a term must not be negative")
        self.alpha, self.beta, self.loss = alpha, beta, as_loss(loss)
        self.kind: Kind | None = self.loss.kind

    def __call__(self, scores: Tensor, batch: Batch, recalled: bool) -> Tensor:
        if not recalled:
            return self.loss(scores, batch, False)
        distance = _distance(in_full(scores), batch.columns["logits"])
        error = self.loss(scores, batch, True)
        if DRAW not in batch.columns:
            return self.alpha * distance + self.beta * error
        if int(batch.columns[DRAW].max()) > 1:
            raise InvalidInput("DER++ has two terms, so at most two draws: Draws(retrieval, 2)")
        # Each draw is half of the batch, and the mean over the batch is taken later.
        return 2 * torch.where(batch.columns[DRAW] == 0, self.alpha * distance, self.beta * error)

    def columns(self, scores: Tensor) -> dict[str, Tensor]:
        return {"logits": in_full(scores.detach())}


def _distance(scores: Tensor, stored: Tensor) -> Tensor:
    """The mean squared distance of each row's scores from its stored ones; what was not stored (NaN) takes no part."""
    scores = scores[:, : stored.shape[1]]
    known = ~stored.isnan()
    differences = scores - torch.where(known, stored, scores.detach())
    return differences.square().flatten(1).sum(1) / known.flatten(1).sum(1).clamp(min=1)


class _FromModule:
    """One of torch's loss modules, asked for one value an element and averaged over what is not a row."""

    def __init__(self, module: nn.Module) -> None:
        self._module = copy.copy(module)
        self._module.reduction = "none"  # type: ignore[assignment]
        self._classes = isinstance(module, nn.CrossEntropyLoss | nn.NLLLoss | nn.MultiMarginLoss)
        labels = isinstance(module, nn.BCEWithLogitsLoss | nn.MultiLabelSoftMarginLoss)
        self.kind: Kind | None = "classes" if self._classes else "labels" if labels else "values"

    def __call__(self, scores: Tensor, batch: Batch, recalled: bool) -> Tensor:
        scores, y = in_full(scores), batch.y
        if not self._classes:
            y = _value_targets(scores, y)
        elif isinstance(self._module, nn.CrossEntropyLoss) and y.is_floating_point() and y.shape == scores.shape:
            y = y.to(scores.dtype)  # a probability for each class
        else:
            y = y.long() if recalled else class_targets(scores, y)
        return per_row(_asked(self._module, scores, y), len(batch))


class _FromCallable:
    """A user's ``(scores, y)``. What the outputs mean is read off the targets."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._function = function
        self.kind: Kind | None = None

    def __call__(self, scores: Tensor, batch: Batch, recalled: bool) -> Tensor:
        values = _asked(self._function, in_full(scores), batch.y)
        n = len(batch)
        if n > 1 and values.shape == (n, n) and scores.shape == (n, 1) and batch.y.shape == (n,):
            raise InvalidInput(
                f"the loss compares all {n} outputs with all {n} targets: outputs have shape ({n}, 1), targets ({n},); "
                "give targets of shape (rows, 1), or squeeze the outputs in your loss"
            )
        return per_row(values, n)


class _FromFull:
    """A user's ``(scores, batch, recalled)``."""

    def __init__(self, function: Callable[[Tensor, Batch, bool], Tensor]) -> None:
        self._function = function
        self.kind: Kind | None = getattr(function, "kind", None)

    def __call__(self, scores: Tensor, batch: Batch, recalled: bool) -> Tensor:
        return per_row(_asked(self._function, in_full(scores), batch, recalled), len(batch))


def as_loss(loss: Any) -> Loss:
    """Any of the accepted forms as a `Loss`; None is cross-entropy."""
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
        return _FromCallable(loss)
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return _FromFull(loss) if len(needed) == 3 else _FromCallable(loss)


def per_row(values: Tensor, rows: int) -> Tensor:
    """One value a row: the mean over whatever other dimensions there are."""
    if values.ndim == 0 or len(values) != rows:
        raise InvalidInput(
            f"the loss gave shape {tuple(values.shape)} for {rows} rows; it must give one value a row "
            "(with torch's functions: reduction='none')"
        )
    return values.flatten(1).mean(1) if values.ndim > 1 else values


def in_full(scores: Tensor) -> Tensor:
    """Scores in single precision at least: what a pass in bfloat16 gave is judged in float32."""
    return scores if scores.dtype == torch.float64 else scores.float()


def _asked(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """What the user's loss says, or a refusal in place of torch's complaint."""
    try:
        return function(*arguments)
    except RehearseError:
        raise
    except (RuntimeError, ValueError, TypeError, IndexError) as problem:
        raise InvalidInput(f"the loss cannot judge this batch: {problem}") from problem


def _value_targets(scores: Tensor, y: Tensor) -> Tensor:
    """Targets with the shape of the outputs: a model with one output may be given plain numbers."""
    y = y.to(scores.dtype)
    if y.shape != scores.shape:
        if y.numel() != scores.numel() or len(y) != len(scores):
            raise InvalidInput(
                f"targets of shape {tuple(y.shape)} do not fit the model's output of shape {tuple(scores.shape)}"
            )
        y = y.reshape(scores.shape)
    return y
