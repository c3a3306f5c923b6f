"""What replay from a generator is made of: the snapshots it replays from, and a second network that can be put back."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..heads import find_head, outputs, resize


@dataclass(frozen=True)
class PreviousClassifier:
    """θ′: the classifier as it was, in eval mode, not to be trained."""

    network: nn.Module

    @classmethod
    def of(cls, classifier: nn.Module) -> PreviousClassifier:
        return cls(frozen_copy(classifier))

    def state_dict(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self.network.state_dict().items()}

    def load_state_dict(self, weights: dict[str, Any]) -> None:
        """Into a copy of the present classifier, whose head may have grown since."""
        if outputs(self.network):
            name, head = find_head(self.network)
            saved = weights.get(f"{name}.weight" if name else "weight", head.weight)
            resize(self.network, torch.optim.SGD(self.network.parameters()), len(saved))
        self.network.load_state_dict(weights)


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
            "classifier": {name: value.clone() for name, value in self.classifier.state_dict().items()},
            "generator": {name: value.clone() for name, value in self.generator.state_dict().items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        PreviousClassifier(self.classifier).load_state_dict(state["classifier"])
        self.generator.load_state_dict(state["generator"])


@dataclass(frozen=True)
class Imagined:
    """Rows of a generator, with the previous classifier's probabilities, and their interference where measured."""

    x: Tensor
    probabilities: Tensor
    interference: Tensor | None = None

    def batch(self) -> Batch:
        """As a recalled batch: the most likely label as y, the probabilities beside it, the most interfered first."""
        batch = Batch(self.x, self.probabilities.argmax(1), columns={"probabilities": self.probabilities})
        return batch if self.interference is None else batch.take(self.interference.argsort(descending=True))

    def scores(self) -> Tensor | None:
        return None if self.interference is None else self.interference.sort(descending=True).values


class Retrieved(NamedTuple):
    """What the last step replayed, as the networks saw it: the rows of Figures 2 and 3."""

    incoming: Tensor
    classifier: Tensor | None
    generator: Tensor | None


@contextlib.contextmanager
def restored(network: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """After an error, the network with its buffers and its optimiser are what they were before the block."""
    kept = {name: value.clone() for name, value in network.state_dict().items()}
    state = copy.deepcopy(optimizer.state_dict())
    try:
        yield
    except BaseException:
        network.load_state_dict(kept)
        optimizer.load_state_dict(state)
        raise


def frozen_copy(network: nn.Module) -> nn.Module:
    """The network as it is now, in eval mode, not to be trained."""
    return copy.deepcopy(network).eval().requires_grad_(False)
