"""States of networks: what a checkpoint holds of a model with its optimizer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from hashlib import sha256
from itertools import repeat
from typing import Any, get_args

import torch
from torch import Tensor, nn

from ..batch import Kind, tree_leaves
from ..checks import alike, anything, check, count, each, optional
from ..errors import CheckpointError
from ..heads import fit
from ..random import borrowed
from ..undo import Restore, run
from .network import Network
from .optimizers import copied_optimizer

PROGRESS = (optional(count), lambda kind: {*tree_leaves(kind)} <= {None, *get_args(Kind)}, count, count)
"""The form of `Progress`."""


def network_state(network: Network) -> dict[str, Any]:
    """Return copies of everything that decides what a network does next, but for its random state."""
    state = {
        "model": dict(network.model.state_dict()),
        "buffers": _unsaved_buffers(network.model),
        "optimizer": network.optimizer.state_dict(),
        "optimizer_kind": type(network.optimizer).__name__,
        "samples_passed": network.samples_passed,
    }
    observed = {} if network.observer is None else {"prepare": network.observer.state_dict()}
    return copy.deepcopy(state | observed)


@torch.no_grad()
def load_network_state(network: Network, state: dict[str, Any]) -> None:
    """Load what `network_state` returned; a head that had grown then grows here too.

    Raises:
        CheckpointError: If the state is of another model or optimizer.
    """
    form = dict.fromkeys(("model", "buffers", "optimizer"), dict) | {"optimizer_kind": str, "samples_passed": count}
    check(state, form | ({"prepare": dict} if network.observer is not None else {}), f"the {network.name}'s state")
    weights = _with_frozen(network.model.state_dict(), state["model"])
    fit(network.model, network.optimizer, weights, network.least_outputs)
    unsaved = _unsaved_buffers(network.model)
    check(weights, _any_extra_state(network.model.state_dict()), f"the {network.name}'s weights")
    check(state["buffers"], unsaved, f"the {network.name}'s buffers")
    network.model.load_state_dict(weights)
    for name, buffer in unsaved.items():
        buffer.copy_(state["buffers"][name])
    if state["optimizer_kind"] != type(network.optimizer).__name__:
        kinds = state["optimizer_kind"], type(network.optimizer).__name__
        raise CheckpointError(f"the state is of {kinds[0]}, this optimizer is {kinds[1]}")
    with borrowed(network.random):
        check_optimizer_state(state["optimizer"], network.optimizer)
    network.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    network.samples_passed = state["samples_passed"]
    if network.observer is not None:
        network.observer.load_state_dict(copy.deepcopy(state["prepare"]))


def without_frozen(network: Network, state: dict[str, Any]) -> dict[str, Any]:
    """Return a state of the network in which a digest stands for each parameter that is not trained."""
    frozen = {name for name, one in network.model.named_parameters(remove_duplicate=False) if not one.requires_grad}
    return {**state, "model": {n: _digest(value) if n in frozen else value for n, value in state["model"].items()}}


def _with_frozen(own: Mapping[str, Any], weights: dict[str, Any]) -> dict[str, Any]:
    """Return saved weights with the model's own where a digest says that they are the same."""
    same = {name: own[name] for name, value in weights.items() if isinstance(value, str) and name in own}
    same = {name: value for name, value in same.items() if isinstance(value, Tensor)}  # extra state may be a string
    for name, value in same.items():
        if _digest(value) != weights[name]:
            what = f"the frozen weights {name!r} are not in the file, and those of this model are others"
            raise CheckpointError(f"{what}; build it with the weights that the saved one had")
    return weights | same


def _digest(tensor: Tensor) -> str:
    numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode() + numbers.data).hexdigest()


def move_network(network: Network, device: torch.device | str) -> None:
    """Move the model and the optimizer's state to a device."""
    network.model.to(device)
    network.optimizer.load_state_dict(network.optimizer.state_dict())  # goes where the parameters are


def copied(tensors: Mapping[str, Tensor], device: torch.device | str) -> dict[str, Tensor]:
    """Return copies on a device."""
    return {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}


def copied_frozen(network: Network, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return copies of what `Network.frozen` returned once, perhaps with a smaller head."""
    check(state, alike(network.frozen()), f"the {network.name} as it was")
    return copied(state, network.device)


def _unsaved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that torch leaves out of a state, but that a pass may move."""
    saved = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}


def _any_extra_state(model_state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a model's state; what modules save beside tensors is theirs to check."""
    return {name: value if isinstance(value, Tensor) else anything for name, value in model_state.items()}


def _of_numbers(group: Any) -> bool:
    """Accept a group whose tensors are single numbers: of others nobody can ask whether they are true."""
    return type(group) is dict and all(not isinstance(v, Tensor) or v.numel() == 1 for v in group.values())


def check_optimizer_state(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Check that the optimizer can continue from a state: a copy of it takes two steps along gradients of zero."""
    check(state["state"], dict.fromkeys(state["state"], dict), "the optimizer's state")
    check(state["param_groups"], each(_of_numbers), "the optimizer's groups")
    shadow = copied_optimizer(optimizer, {})
    shadow.load_state_dict(copy.deepcopy(state))
    for group in shadow.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    for _ in range(2):  # momentum is multiplied from the second on
        type(shadow).step(shadow)  # the class's own: a scheduler replaces the one of the object


def untouched(network: Network) -> Restore:
    """Return a function that restores grad mode, the count of passed samples and, if looks call the model, that."""
    network.twin.follow()  # only then it is known whether the model can be copied
    modules = [] if network.twin.module is not network.model else list(network.model.modules())
    held = [own for module in modules for own in (module._parameters, module._buffers)]
    own, modes, passed = [dict(one) for one in held], [module.training for module in modules], network.samples_passed
    grad = torch.is_grad_enabled()

    def restore() -> None:
        run(map(dict.update, held, own))
        run(map(setattr, modules, repeat("training"), modes))
        network.samples_passed = passed
        torch.set_grad_enabled(grad)

    return restore
