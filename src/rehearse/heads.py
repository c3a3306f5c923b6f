"""The last layer: find it, take what it returned, and give it more outputs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import chain, repeat
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn

from .batch import Tree, tree_leaves
from .errors import InvalidInput, InvalidType
from .undo import Operations, run

# Optimizer state that does not start at zero, and the setting that holds its first value.
MOST: Final = 2**31  # outputs that no head has
STARTS: Final = {"sum": "initial_accumulator_value", "step_size": "lr"}


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the linear layers by name, in their order; there is at least one."""
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if not layers:
        raise InvalidInput(f"{type(model).__name__} has no linear layer; the first or the last is needed here")
    return layers


def find_head(model: nn.Module) -> tuple[str, nn.Linear]:
    """Return the name of the linear layer that computes the logits, and the layer: ``model.head``, or else the last."""
    layers = linear_layers(model)
    name = "head" if "head" in layers else next(reversed(layers))
    return name, layers[name]


def outputs(model: nn.Module) -> int:
    """Return the number of the head's outputs; 0 for a model without a head."""
    return find_head(model)[1].out_features if any(isinstance(m, nn.Linear) for m in model.modules()) else 0


def logits_of(output: Any, name: str) -> Tree:
    """Return the logits in what a model returned, which is more than one tensor."""
    keyed = isinstance(output, dict) and "logits" in output
    logits = output["logits"] if keyed else getattr(output, "logits", output)
    if not tree_leaves(logits) or not all(isinstance(leaf, Tensor) for leaf in tree_leaves(logits)):
        what = f"one tensor of logits, or a tuple or dict of them; it returned {output!r:.80}"
        raise InvalidType(f"the {name} must return {what}")
    return logits


class Growth(NamedTuple):
    """A larger head that is ready to be put in place."""

    added: int
    """The number of new outputs."""
    values: dict[str, Tensor]
    """Of the head's parameters, by name."""
    operations: Operations
    """What puts it in place, for a commit."""

    def appended_to(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return earlier tensors of the model with the new outputs beside those that they have."""
        rows = {name: values[len(held[name]) :].to(held[name]) for name, values in self.values.items() if name in held}
        return {**held, **{name: torch.cat([held[name], added]) for name, added in rows.items()}}


@torch.no_grad()
def growth(model: nn.Module, optimizer: torch.optim.Optimizer, classes: int) -> Growth:
    """Prepare a head of ``classes`` outputs in all; nothing changes before the operations run.

    Old outputs keep their weights bit for bit. New ones are initialized as those of a new `nn.Linear`, from torch's
    random state. The parameters remain the same objects in the same groups of the optimizer, whose state continues for
    old outputs and starts fresh for new ones (Adam counts steps by parameter, so the count continues for both). A
    frozen head remains frozen.

    Raises:
        InvalidInput: If ``classes`` is smaller than the number of outputs, or the head cannot grow.
    """
    name, head = find_head(model)
    if isinstance(classes, bool) or not isinstance(classes, int) or not head.out_features <= classes < MOST:
        raise InvalidInput(f"the head {name!r} has {head.out_features} outputs and cannot be grown to {classes!r}")
    added = classes - head.out_features
    if not added:
        return Growth(0, {}, ())
    bound = 1 / math.sqrt(head.in_features) if head.in_features else 0.0
    values, operations = _resizing(model, optimizer, classes)
    for value in values.values():
        value[-added:].uniform_(-bound, bound)
    return Growth(added, values, operations)


def _resizing(model: nn.Module, optimizer: torch.optim.Optimizer, classes: int) -> tuple[dict[str, Tensor], Operations]:
    """Return the head's parameters, cut to ``classes`` outputs or with zeros appended, and what puts them in place."""
    name, head = find_head(model)
    own = _parameters(model, name, head)
    parameters, values = list(own.values()), [_resized(parameter.data, classes, 0.0) for parameter in own.values()]
    held = [optimizer.state.get(parameter, {}) for parameter in parameters]
    states = [_resized_state(optimizer, parameter, classes) for parameter in parameters]
    operations = chain(
        map(setattr, parameters, repeat("grad"), repeat(None, len(parameters))),
        map(setattr, parameters, repeat("data"), values),
        map(dict.update, held, states),
        map(dict.update, [vars(head)], [{"out_features": classes}]),
    )
    return {f"{name}.{key}".lstrip("."): value for key, value in zip(own, values, strict=True)}, operations


def fit(model: nn.Module, optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], least: int) -> None:
    """Give the head as many outputs as the saved weights have, but never fewer than ``least`` (0: there is no head)."""
    saved = weights.get(f"{find_head(model)[0]}.weight".lstrip(".")) if least else None
    if saved is not None and saved.ndim == 2 and least <= len(saved) != outputs(model):
        run(_resizing(model, optimizer, len(saved))[1])


def _resized_state(optimizer: torch.optim.Optimizer, parameter: Tensor, classes: int) -> dict[str, Any]:
    """Return what changes in the optimizer's state of a parameter of the head."""
    groups = (group for group in optimizer.param_groups if any(own is parameter for own in group["params"]))
    group, resized = next(groups, {}), dict[str, Any]()
    for name, value in optimizer.state.get(parameter, {}).items():
        if not isinstance(value, Tensor) or value.ndim == 0 or name == "col_var":
            continue  # a count, or (Adafactor) one value per column: the same for any number of outputs
        if value.shape != parameter.shape and name != "row_var":
            raise InvalidInput(f"the optimizer's {name!r} of shape {tuple(value.shape)} cannot grow with the head")
        resized[name] = _resized(value, classes, float(group.get(STARTS.get(name, ""), 0.0)))
    return resized


def _resized(values: Tensor, length: int, fill: float) -> Tensor:
    """Return a copy that is cut, or continued with ``fill``."""
    added = values.new_full((max(length - len(values), 0), *values.shape[1:]), fill)
    return torch.cat([values[:length], added])


def _parameters(model: nn.Module, name: str, head: nn.Linear) -> dict[str, nn.Parameter]:
    """Return weight and bias of the head, if they are plain parameters of its own."""
    own = dict(head.named_parameters(recurse=False))
    if "weight" not in own:
        raise InvalidInput(f"the weight of the head {name!r} is made from other parameters; such a head cannot grow")
    for other, parameter in model.named_parameters(remove_duplicate=False):
        if any(parameter is mine for mine in own.values()) and other.rpartition(".")[0] != name:
            raise InvalidInput(f"the head {name!r} shares its weights with {other!r}; such a head cannot grow")
    return own
