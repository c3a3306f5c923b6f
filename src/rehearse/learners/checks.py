"""What a learner is built from, refused in words where it cannot work."""

from __future__ import annotations

import math
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..errors import CheckpointError, InvalidInput, InvalidType
from ..parts import stepped_parameters


def check_parts(model: Any, optimizer: Any, clip: Any, prepare: Any = None, name: str = "model") -> None:
    whose = "" if name == "model" else f" of the {name}"
    if not isinstance(model, nn.Module):
        raise InvalidType(f"the {name} must be an nn.Module, this is {type(model).__name__}")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise InvalidType(f"the optimiser{whose} must be one of torch.optim, this is {type(optimizer).__name__}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidInput(
            "LBFGS evaluates the loss several times a step, which a stream does not allow; use SGD or Adam"
        )
    if not stepped_parameters(model, optimizer):
        raise InvalidInput(
            f"the optimiser{whose} holds no trainable parameter of this {name}; build it from {name}.parameters()"
        )
    if clip is not None and not (is_number(clip) and clip > 0):
        raise InvalidInput(f"clip is {clip!r}; it must be a positive norm, or None")
    if prepare is not None and not callable(prepare):
        raise InvalidType(f"prepare is {prepare!r}; it must be a function of the inputs, or None")


def check_second(network: Any, optimizer: Any, clip: Any, name: str, needs: Iterable[str]) -> None:
    """A second network beside the classifier, with the small surface that it needs."""
    check_parts(network, optimizer, clip, name=name)
    lacking = [part for part in needs if not hasattr(network, part)]
    if lacking:
        raise InvalidType(
            f"the {name} is a {type(network).__name__}, which lacks {' and '.join(lacking)} "
            f"(see rehearse.latent.{name.capitalize()})"
        )


def one_tensor(rows: Any, name: str) -> Tensor:
    """Prepared inputs, if the second network can take them."""
    if not isinstance(rows, Tensor) or not rows.is_floating_point():
        raise InvalidInput(f"the {name} takes one tensor of real numbers; these inputs are something else")
    return rows


def check_optimizer_fits(state: dict[str, Any], optimizer: torch.optim.Optimizer, kind: str | None = None) -> None:
    """Torch checks the sizes of groups, but neither whose they are nor the shapes of what they hold."""
    if kind not in (None, type(optimizer).__name__):
        raise CheckpointError(f"the state is of {kind}, this optimiser is {type(optimizer).__name__}")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in state["state"].items():
        for name, value in values.items():
            fits = not isinstance(value, Tensor) or value.ndim == 0 or value.shape == parameters[int(number)].shape
            if not fits:
                raise CheckpointError(f"the optimiser's {name} of parameter {number} has another shape")


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_positive(**numbers: Any) -> None:
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, Integral) or number < 1:
            raise InvalidInput(f"{name} is {number!r}; it must be a positive whole number")


def check_switches(**switches: Any) -> None:
    for name, switch in switches.items():
        if not isinstance(switch, bool):
            raise InvalidType(f"{name} is {switch!r}; it must be True or False")


def check_not_negative(**numbers: Any) -> None:
    for name, number in numbers.items():
        if not is_number(number) or not 0 <= number < math.inf:
            raise InvalidInput(f"{name} is {number!r}; it must be a number that is not negative")


def check_task(data: Any, task: Any) -> None:
    """Of a task that begins: all of its rows, and its number."""
    if not isinstance(data, Batch):
        raise InvalidType(f"a task begins with all of its rows, begin_task(Batch(x, y, 0), 0); this is {data!r:.80}")
    if isinstance(task, bool) or not isinstance(task, Integral) or task < 0:
        raise InvalidInput(f"the task that begins is {task!r}; it must be a number, 0 or more")
    if isinstance(data.task, Integral) and data.task != task:
        raise InvalidInput(f"task {task} begins, and its rows are of task {data.task}")


def check_coefficients(**weights: Any) -> None:
    for name, weight in weights.items():
        if not is_number(weight) or not math.isfinite(weight):
            raise InvalidInput(f"the coefficient {name} is {weight!r}; it must be a finite number")


# ------------------------------------------------------------------------------------------------ rows on their own


def needs_two_rows(model: nn.Module) -> bool:
    """Whether a lone row cannot be trained on: it has no variance for batch-norm over rows. Frozen ones need none."""
    return any(isinstance(m, nn.BatchNorm1d) and (m.training or not model.training) for m in model.modules())


def check_budget(budget: Any, model: nn.Module) -> None:
    """How many rows are recalled, in a pass of their own."""
    check_positive(budget=budget)
    if budget == 1 and needs_two_rows(model):
        raise InvalidInput(
            "budget is 1, and a lone row has no variance for the model's BatchNorm1d: recall at least 2 rows "
            "(or let them pass with the incoming ones: Replay(..., batchnorm='joint'))"
        )
