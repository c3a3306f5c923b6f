"""Networks as they were: frozen copies to compare with and to replay from, states, and what puts one back."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..heads import find_head, outputs, resize
from ..parts import KeptBuffers, load_unsaved, unsaved_copies
from .checks import check_optimizer_fits


@dataclass(frozen=True)
class PreviousClassifier:
    """θ′: the classifier as it was, in eval mode, not to be trained."""

    network: nn.Module

    @classmethod
    def of(cls, classifier: nn.Module) -> PreviousClassifier:
        return cls(frozen_copy(classifier))

    def state_dict(self) -> dict[str, Any]:
        return network_state(self.network)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into a copy of the present classifier, whose head may have grown since."""
        if outputs(self.network):
            name, head = find_head(self.network)
            saved = state["weights"].get(f"{name}.weight" if name else "weight", head.weight)
            resize(self.network, torch.optim.SGD(self.network.parameters()), len(saved))
        load_network(self.network, state)


@dataclass(frozen=True)
class Snapshot:
    """θ′, φ′, γ′: classifier and generator as they were, in eval mode, not to be trained."""

    classifier: nn.Module
    generator: nn.Module

    @classmethod
    def of(cls, classifier: nn.Module, generator: nn.Module) -> Snapshot:
        return cls(frozen_copy(classifier), frozen_copy(generator))

    def state_dict(self) -> dict[str, Any]:
        return {
            "classifier": PreviousClassifier(self.classifier).state_dict(),
            "generator": network_state(self.generator),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        PreviousClassifier(self.classifier).load_state_dict(state["classifier"])
        load_network(self.generator, state["generator"])


def frozen_copy(network: nn.Module) -> nn.Module:
    """The network as it is now, in eval mode, not to be trained."""
    return copy.deepcopy(network).eval().requires_grad_(False)


def network_state(network: nn.Module) -> dict[str, Any]:
    """A network as it is now, with the buffers that torch does not save."""
    weights = {name: value.clone() for name, value in network.state_dict().items()}
    return {"weights": weights, "buffers": unsaved_copies(network)}


def load_network(network: nn.Module, state: dict[str, Any]) -> None:
    """Take back what `network_state` gave."""
    network.load_state_dict(state["weights"])
    load_unsaved(network, state["buffers"])


def trained_state(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A network with its optimiser, as they are now."""
    kind = {"optimizer_kind": type(optimizer).__name__}
    return {**network_state(network), "optimizer": copy.deepcopy(optimizer.state_dict()), **kind}


def load_trained(network: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Take back what `trained_state` gave."""
    load_network(network, state)
    check_optimizer_fits(state["optimizer"], optimizer, state["optimizer_kind"])
    optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


@contextlib.contextmanager
def restored(network: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """After an error, the network with its buffers and its optimiser are what they were before the block."""
    kept = {name: value.clone() for name, value in network.state_dict().items()}
    buffers = KeptBuffers(network.modules())
    state = copy.deepcopy(optimizer.state_dict())
    try:
        yield
    except BaseException:
        buffers.put_back()
        network.load_state_dict(kept)
        optimizer.load_state_dict(state)
        raise
