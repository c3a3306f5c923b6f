"""What a generator imagines, and what it must be able to do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...errors import InvalidInput, NotFinite
from ...network import Network


class Imagined(NamedTuple):
    """Samples of a generator, the previous classifier's probabilities, and the interference if it was measured."""

    x: Tensor
    probabilities: Tensor
    interference: Tensor | None = None

    def ranked(self) -> Imagined:
        """Return the same samples, the most interfered first."""
        if self.interference is None:
            return self
        interference, order = self.interference.sort(descending=True, stable=True)
        return Imagined(self.x[order], self.probabilities[order], interference)


class Retrieved(NamedTuple):
    """What a step replays, as the networks see it: Figures 2 and 3."""

    incoming: Tensor
    classifier: Tensor | None
    generator: Tensor | None


@contextlib.contextmanager
def naming_the_search(searched: bool) -> Iterator[None]:
    """Say in errors of samples that a search found that it may be the cause."""
    try:
        yield
    except NotFinite as problem:
        if not searched:
            raise
        hint = "some of these samples were found by a search in latent space: if it goes too far, lower its step_size"
        raise NotFinite(f"{problem}; {hint}") from problem


def check_generator(network: Network, x: Tensor, latent: int, *, searched: bool) -> None:
    """Check that a generator does with these samples what `rehearse.latent.Generator` says.

    Args:
        network: The generator.
        x: Prepared inputs.
        latent: The size of z.
        searched: Whether its decoder must pass a gradient on to z.
    """
    with network.looking("evaluation"):
        tensors = network.twin.tensors()
        codes = network.ask("encode", x, tensors)
        if not _are_two(codes, (len(x), latent)):
            shape = len(x), latent
            raise InvalidInput(f"generator.encode must return a tuple of a mean and a log-variance of shape {shape}")
        with torch.enable_grad():
            decoded = network.ask("decode", codes[0].detach().requires_grad_(), tensors)
        if not isinstance(decoded, Tensor) or decoded.shape != x.shape:
            found = tuple(decoded.shape) if isinstance(decoded, Tensor) else type(decoded).__name__
            raise InvalidInput(f"generator.decode returns {found}; inputs have shape {tuple(x.shape)}")
        if not bool(decoded.isfinite().all()):
            raise InvalidInput("generator.decode returns numbers that are not finite")
        if searched and not decoded.requires_grad:
            raise InvalidInput("generator.decode passes no gradient on to z, so there is nothing to search by")
        if not _are_two(network.ask("loss", x, tensors), (len(x),)):
            raise InvalidInput("generator.loss must return a tuple of reconstruction and KL, one value per sample")


def _are_two(values: Any, shape: tuple[int, ...]) -> bool:
    pair = isinstance(values, tuple) and len(values) == 2
    return pair and all(isinstance(value, Tensor) and value.shape == shape for value in values)
