"""The last layer: find it, see what goes into it, and give it more outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from .errors import InvalidInput

# What an optimiser's state starts with where that is not zero: the name of the setting that holds the value.
STARTS: Final = {"sum": "initial_accumulator_value", "step_size": "lr"}


def find_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """The linear layer that makes the class scores, and its name: ``model.head`` if there is one, else the last."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if "head" in layers:
        return "head", layers["head"]
    if not layers:
        raise InvalidInput(f"{type(model).__name__} has no linear layer; a head is needed here")
    name = next(reversed(layers))
    return name, layers[name]


def outputs(model: nn.Module) -> int:
    """How many outputs the head has; 0 for a model without one."""
    if not any(isinstance(module, nn.Linear) for module in model.modules()):
        return 0
    return find_head(model)[1].out_features


def grow(model: nn.Module, optimizer: torch.optim.Optimizer, classes: int) -> int:
    """Give the head ``classes`` outputs in all, and say how many of them are new.

    Old outputs keep their weights to the bit. New ones start as those of a new `nn.Linear` do, drawn from torch's
    random state. The parameters stay the same objects, in the same place of the same group of the optimiser; its
    momentum or moments go on for the old outputs and start afresh for the new ones (the step count of Adam is one a
    parameter, so it goes on for both). A frozen head stays frozen.
    """
    name, head = find_head(model)
    if isinstance(classes, bool) or not isinstance(classes, int) or classes < head.out_features:
        raise InvalidInput(
            f"the head {name!r} has {head.out_features} outputs and cannot be grown to {classes!r}; "
            "give the number of outputs in all, and no fewer than there are"
        )
    added = classes - head.out_features
    if added:
        bound = 1 / math.sqrt(head.in_features) if head.in_features else 0.0
        resize(model, optimizer, classes)
        with torch.no_grad():
            for parameter in _parameters(model, name, head).values():
                parameter[-added:].uniform_(-bound, bound)
    return added


def resize(model: nn.Module, optimizer: torch.optim.Optimizer, classes: int) -> None:
    """Cut the head to ``classes`` outputs or append zeros to it, the optimiser's state with it."""
    name, head = find_head(model)
    parameters = _parameters(model, name, head)
    groups = {id(parameter): group for group in optimizer.param_groups for parameter in group["params"]}
    states: list[tuple[nn.Parameter, dict[str, Any]]] = []
    for parameter in parameters.values():  # everything is made before anything is changed
        state = _resized_state(
            optimizer.state.get(parameter, {}), parameter, groups.get(id(parameter), {}), head.out_features, classes
        )
        states.append((parameter, state))
    for parameter, state in states:
        parameter.grad = None
        parameter.data = _resized(parameter.data, classes, 0.0)
        if state:
            optimizer.state[parameter].update(state)
    head.out_features = classes


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], least: int) -> None:
    """A head that had grown when the weights were saved grows here too, never below ``least`` outputs (0: no head)."""
    if not least:
        return
    name, head = find_head(model)
    saved = weights.get(f"{name}.weight" if name else "weight")
    if saved is not None and saved.ndim == 2 and least <= len(saved) != head.out_features:
        resize(model, optimizer, len(saved))


def _resized_state(
    state: Mapping[str, Any], parameter: Tensor, group: Mapping[str, Any], before: int, classes: int
) -> dict[str, Any]:
    resized: dict[str, Any] = {}
    for name, value in state.items():
        if not isinstance(value, Tensor) or value.ndim == 0 or name == "col_var":
            continue  # a count, or (Adafactor) one value a column: the same for any number of outputs
        if value.shape != parameter.shape and name != "row_var":
            raise InvalidInput(
                f"the optimiser keeps {name!r} of shape {tuple(value.shape)} for the head, which cannot be grown; "
                "build a new optimiser for the grown model"
            )
        fill = float(group.get(STARTS.get(name, ""), 0.0)) if classes > before else 0.0
        resized[name] = _resized(value, classes, fill)
    return resized


def _resized(values: Tensor, rows: int, fill: float) -> Tensor:
    if rows <= len(values):
        return values[:rows].clone()
    return torch.cat([values, values.new_full((rows - len(values), *values.shape[1:]), fill)])


def _parameters(model: nn.Module, name: str, head: nn.Linear) -> dict[str, nn.Parameter]:
    """Weight and bias of the head, if they are plain parameters of its own."""
    own = dict(head.named_parameters(recurse=False))
    if "weight" not in own:
        raise InvalidInput(f"the weight of the head {name!r} is made from other parameters; such a head cannot grow")
    for other, parameter in model.named_parameters(remove_duplicate=False):
        if any(parameter is mine for mine in own.values()) and other.rpartition(".")[0] != name:
            raise InvalidInput(f"the head {name!r} shares its weights with {other!r}; such a head cannot grow")
    return own
