"""What a step is made of: the mean of the losses, the step along a gradient, and what is told of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..batch import Batch, tree_concatenate
from ..errors import InvalidInput, NotFinite
from ..gradients import Gradient, gradient_norm, is_plain_sgd, sgd_step
from ..parts import Stepped, stepped_parameters


@dataclass(frozen=True, slots=True)
class Step:
    """What one `observe` did, as of its last update.

    The mean loss of the incoming rows and of the recalled ones, before the step; the recalled batch with its slots,
    or None when nothing was replayed; and its interference scores, highest first, or None when nothing was scored.
    """

    incoming_loss: float
    recalled_loss: float | None = None
    recalled: Batch | None = None
    interference: Tensor | None = None


class Passed(NamedTuple):
    """A batch that went through the model: its mean loss, the gradient of that, and the scores."""

    loss: float
    gradient: Gradient
    scores: Tensor


def refuse_overflown(modules: Iterable[nn.Module]) -> None:
    """Batch-norm can normalise inputs whose variance is beyond what its running statistics can hold."""
    batchnorms = (module for module in modules if isinstance(module, _BatchNorm))
    statistics = [module.running_var for module in batchnorms if module.running_var is not None]
    if statistics and not bool(torch.stack(torch._foreach_norm(statistics, torch.inf)).isfinite().all()):
        raise InvalidInput("these inputs are too large for the model's running statistics; scale them down first")


def check_rows(scores: Tensor, rows: int) -> Tensor:
    """What a model gave for so many rows, if it has as many."""
    if len(scores) != rows:
        raise InvalidInput(
            f"the model gave an output of shape {tuple(scores.shape)} for {rows} rows; its first dimension must be "
            "that of the rows"
        )
    return scores


def mean_loss(losses: Tensor) -> Tensor:
    """The mean over rows, or a refusal if it is no number."""
    loss = losses.mean()
    if not math.isfinite(loss.item()):
        raise NotFinite(f"the loss is {loss.item()} for finite input; the model or the learning rate is off")
    return loss


def step_along(
    gradient: Gradient,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    clip: float | None = None,
    stepped: Stepped | None = None,
) -> None:
    """One step of the optimiser along this gradient, refused before anything moves if it is not finite.

    Whatever stood in ``.grad`` is there again afterwards, and has no part in the step.
    """
    stepped = stepped or stepped_parameters(model, optimizer)
    direct = clip is None and is_plain_sgd(optimizer)
    norm = gradient_norm(gradient, factored=direct)
    if not math.isfinite(norm):
        raise NotFinite("the gradient is not finite: the learning rate may be too high for this batch")
    if direct:
        sgd_step(gradient, stepped)
        return
    if clip is not None:
        scale = min(1.0, clip / (norm + 1e-12))
        gradient = {name: value * scale for name, value in gradient.items()}
    stood = [(parameter, parameter.grad) for group in optimizer.param_groups for parameter in group["params"]]
    try:
        for parameter, _ in stood:
            parameter.grad = None
        for name, (parameter, _) in stepped.items():
            parameter.grad = gradient.get(name)
        optimizer.step()
    finally:
        for parameter, before in stood:
            parameter.grad = before


def join(first: Batch, second: Batch) -> Batch:
    """Two batches as one, the inputs and targets alone."""
    return Batch(tree_concatenate([first.x, second.x]), torch.cat([first.y, second.y]))


def without_task(batch: Batch) -> Batch:
    return replace(batch, task=None)
