"""States of networks: what a checkpoint holds of a model with its optimizer."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .errors import CheckpointError
from .heads import fit
from .network import Network


def network_state(network: Network) -> dict[str, Any]:
    """Return copies of everything that decides what a network does next, but for its random state."""
    state = {
        "model": dict(network.model.state_dict()),
        "buffers": _unsaved_buffers(network.model),
        "optimizer": network.optimizer.state_dict(),
        "optimizer_kind": type(network.optimizer).__name__,
        "samples_passed": network.samples_passed,
    }
    return copy.deepcopy(state)


@torch.no_grad()
def load_network_state(network: Network, state: dict[str, Any]) -> None:
    """Load what `network_state` returned; a head that had grown then grows here too.

    Raises:
        CheckpointError: If the state is of another model or optimizer.
    """
    fit(network.model, network.optimizer, state["model"], network.least_outputs)
    network.model.load_state_dict(state["model"])
    unsaved = _unsaved_buffers(network.model)
    if state["buffers"].keys() != unsaved.keys():
        raise CheckpointError("the model's buffers are others than those that were saved")
    for name, buffer in unsaved.items():
        buffer.copy_(state["buffers"][name])
    _check_optimizer_state(state["optimizer"], network.optimizer, state["optimizer_kind"])
    network.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
    network.samples_passed = int(state["samples_passed"])


def move_network(network: Network, device: torch.device | str) -> None:
    """Move the model and the optimizer's state to a device."""
    network.model.to(device)
    network.optimizer.load_state_dict(network.optimizer.state_dict())  # goes where the parameters are


def copied(tensors: Mapping[str, Tensor], device: torch.device | str) -> dict[str, Tensor]:
    """Return copies on a device."""
    return {name: tensor.to(device, copy=True) for name, tensor in tensors.items()}


def _unsaved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that torch leaves out of a state, but that a pass may move."""
    saved = model.state_dict()
    return {name: buffer for name, buffer in model.named_buffers() if name not in saved}


def _check_optimizer_state(state: dict[str, Any], optimizer: torch.optim.Optimizer, kind: str) -> None:
    """Check what torch does not: whose state it is, and the shapes of what it holds."""
    if kind != type(optimizer).__name__:
        raise CheckpointError(f"the state is of {kind}, this optimizer is {type(optimizer).__name__}")
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor) and value.ndim and value.shape != parameters[int(number)].shape:
                raise CheckpointError(f"the optimizer's {name} of parameter {number} has another shape")
