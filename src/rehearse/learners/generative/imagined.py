"""What replay from a generator is made of: what it imagines and what a generator must be able to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...batch import Batch
from ...errors import InvalidInput, NotFinite
from ...network import Network


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

    def shown(self, init: str | None) -> Tensor:
        """The rows in the order of Figures 2 and 3: the most interfered first; or, where a search starts from the codes
        of the incoming batch, as they were found: each under the row that it started from."""
        if init != "prior" or self.interference is None:
            return self.x
        return self.x[self.interference.argsort(descending=True, stable=True)]

    def scores(self) -> Tensor | None:
        return None if self.interference is None else self.interference.sort(descending=True).values


class Retrieved(NamedTuple):
    """What the last step replayed, as the networks saw it: the rows of Figures 2 and 3."""

    incoming: Tensor
    classifier: Tensor | None
    generator: Tensor | None


@contextlib.contextmanager
def naming_the_search(searched: bool) -> Iterator[None]:
    """What is wrong with rows that a search has found may look like trouble of the learning rate."""
    try:
        yield
    except NotFinite as problem:
        if not searched:
            raise
        raise NotFinite(
            f"{problem}; some of these rows were found by a search in latent space: if that goes too far for the "
            "networks, a smaller step_size helps"
        ) from problem


def check_generator(network: Network, x: Tensor, latent: int, *, searched: bool) -> None:
    """Refuse a generator that does not do with these samples what `rehearse.latent.Generator` says.

    Args:
        network: The generator.
        x: Prepared inputs.
        latent: The size of z.
        searched: Whether its decoder must pass a gradient on to z.
    """
    samples = len(x)
    with network.looking("evaluation"):
        tensors = network.twin.tensors()
        codes = network.ask("encode", x, tensors)
        if not _are_two(codes, (samples, latent)):
            raise InvalidInput(
                f"the generator's encode must return a tuple of a mean and a log-variance, each of shape "
                f"{samples, latent}"
            )
        with torch.enable_grad():
            decoded = network.ask("decode", codes[0].detach().requires_grad_(), tensors)
        if not isinstance(decoded, Tensor) or decoded.shape != x.shape:
            found = tuple(decoded.shape) if isinstance(decoded, Tensor) else type(decoded).__name__
            raise InvalidInput(f"the generator's decode returns {found}; inputs have shape {tuple(x.shape)}")
        if not bool(decoded.isfinite().all()):
            raise InvalidInput("the generator's decode returns numbers that are not finite")
        if searched and not decoded.requires_grad:
            raise InvalidInput("the generator's decode passes no gradient on to z, so there is nothing to search by")
        if not _are_two(network.ask("loss", x, tensors), (samples,)):
            raise InvalidInput(
                "the generator's loss must return a tuple of reconstruction and KL, one value per sample"
            )


def _are_two(values: Any, shape: tuple[int, ...]) -> bool:
    pair = isinstance(values, tuple) and len(values) == 2
    return pair and all(isinstance(value, Tensor) and value.shape == shape for value in values)
