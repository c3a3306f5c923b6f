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
from ..errors import InvalidInput
from ..heads import find_head, outputs, resize
from ..parts import KeptBuffers, load_unsaved, unsaved_copies


@dataclass(frozen=True)
class PreviousClassifier:
    """θ′: the classifier as it was, in eval mode, not to be trained."""

    network: nn.Module

    @classmethod
    def of(cls, classifier: nn.Module) -> PreviousClassifier:
        return cls(frozen_copy(classifier))

    def state_dict(self) -> dict[str, Any]:
        weights = {name: value.clone() for name, value in self.network.state_dict().items()}
        return {"weights": weights, "buffers": unsaved_copies(self.network)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Into a copy of the present classifier, whose head may have grown since."""
        weights = state["weights"]
        if outputs(self.network):
            name, head = find_head(self.network)
            saved = weights.get(f"{name}.weight" if name else "weight", head.weight)
            resize(self.network, torch.optim.SGD(self.network.parameters()), len(saved))
        self.network.load_state_dict(weights)
        load_unsaved(self.network, state["buffers"])


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
            "generator": {name: value.clone() for name, value in self.generator.state_dict().items()},
            "generator_buffers": unsaved_copies(self.generator),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        PreviousClassifier(self.classifier).load_state_dict(state["classifier"])
        self.generator.load_state_dict(state["generator"])
        load_unsaved(self.generator, state["generator_buffers"])


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
    buffers = KeptBuffers(network.modules())
    state = copy.deepcopy(optimizer.state_dict())
    try:
        yield
    except BaseException:
        buffers.put_back()
        network.load_state_dict(kept)
        optimizer.load_state_dict(state)
        raise


def check_generator(generator: nn.Module, x: Tensor, latent: int, *, searched: bool) -> None:
    """Refuse a generator that does not do with these rows what `rehearse.latent.Generator` says.

    ``searched`` says that its decoder must pass a gradient on to z.
    """
    rows = len(x)

    def asked(method: str, argument: Tensor) -> Any:
        try:
            return getattr(generator, method)(argument)
        except (RuntimeError, ValueError, TypeError, IndexError) as problem:
            shape = tuple(argument.shape)
            raise InvalidInput(f"the generator's {method} fails for rows of shape {shape}: {problem}") from problem

    codes = asked("encode", x)
    if not _are_two(codes, (rows, latent)):
        raise InvalidInput(f"the generator's encode must give a mean and a log-variance, each of shape {rows, latent}")
    with torch.enable_grad():
        decoded = asked("decode", codes[0].detach().requires_grad_())
    if not isinstance(decoded, Tensor) or decoded.shape != x.shape:
        found = tuple(decoded.shape) if isinstance(decoded, Tensor) else type(decoded).__name__
        raise InvalidInput(f"the generator's decode gives {found}; inputs have shape {tuple(x.shape)}")
    if searched and not decoded.requires_grad:
        raise InvalidInput("the generator's decode passes no gradient on to z, so there is nothing to search by")
    if not _are_two(asked("loss", x), (rows,)):
        raise InvalidInput("the generator's loss must give reconstruction and KL, one value a row each")


def _are_two(values: Any, shape: tuple[int, ...]) -> bool:
    pair = isinstance(values, tuple) and len(values) == 2
    return pair and all(isinstance(value, Tensor) and value.shape == shape for value in values)


def frozen_copy(network: nn.Module) -> nn.Module:
    """The network as it is now, in eval mode, not to be trained."""
    return copy.deepcopy(network).eval().requires_grad_(False)
