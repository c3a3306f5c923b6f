"""Search in a latent space: gradient ascent on an objective over z, and what a generator must offer for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from .errors import InvalidInput
from .losses import at_least_float32
from .network import Network


class Elbo(NamedTuple):
    """The negative evidence lower bound in its two parts, one value a row each."""

    reconstruction: Tensor
    kl: Tensor

    def total(self, beta: float = 1.0) -> Tensor:
        """reconstruction + β · KL; β = 1 is the bound itself."""
        return self.reconstruction + beta * self.kl


def gaussian_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(μ, diag σ²) ‖ N(0, I)) = ½ Σ (μ² + σ² − 1 − log σ²), one value a row."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """KL(p ‖ q) = Σ p (log p − log q); classes that are impossible under p, or that only q has, add nothing."""
    ratio = (log_p - log_q[:, : log_p.shape[1]]).masked_fill(log_p == -math.inf, 0)
    return (log_p.exp() * ratio).sum(1)


def entropy(log_p: Tensor) -> Tensor:
    """H(p) = −Σ p log p: 0 where the classifier is certain."""
    return -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(1)  # 0 log 0 = 0


@runtime_checkable
class Generator(Protocol):
    """The small surface that a generator needs, besides being an ``nn.Module``.

    ``latent`` is the size of z, whose prior is the standard normal. Inputs are what the classifier sees, after
    ``prepare``; ``decode`` gives such inputs back.
    """

    latent: int

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z|x), one row an example."""

    def decode(self, z: Tensor) -> Tensor:
        """The mean of p(x|z)."""

    def loss(self, x: Tensor) -> Elbo:
        """−ELBO of each row, in its two parts."""


@runtime_checkable
class Autoencoder(Protocol):
    """The small surface that an autoencoder needs, besides being an ``nn.Module``: inputs are what the classifier
    sees, after ``prepare``; a code is a tensor of floats of any shape, the same for every row."""

    def encode(self, x: Tensor) -> Tensor:
        """The code of each row."""

    def decode(self, code: Tensor) -> Tensor:
        """Inputs again, one for each code."""


class View(NamedTuple):
    """A network with other tensors in place of its own, inside `Network.looking`; the model is not touched."""

    network: Network
    tensors: Mapping[str, Tensor]
    dtype: torch.dtype | None = None

    def classify(self, x: Tensor) -> Tensor:
        """Return log-probabilities."""
        return at_least_float32(self.network(x, self.tensors, self.dtype)).log_softmax(1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of q(z|x)."""
        mean, log_variance = self.network.ask("encode", x, self.tensors, self.dtype)
        return mean, log_variance

    def decode(self, z: Tensor) -> Tensor:
        """Return the mean of p(x|z)."""
        x: Tensor = self.network.ask("decode", z, self.tensors, self.dtype)
        return x

    def loss(self, x: Tensor) -> Elbo:
        """Return −ELBO in its two parts, one value per sample each."""
        return Elbo(*self.network.ask("loss", x, self.tensors, self.dtype))


@dataclass
class LatentSearch:
    """z ← z + step_size · ∇objective(z), ``steps`` times.

    All points are moved together, as one batch: ``objective`` gives one number for all of them. As it is a sum over
    points, the step of a point does not depend on how many there are. With 0 steps the points stay where they start.

    A search that ends in anything but finite numbers gives None, so that the caller replays plain samples instead;
    ``searches`` and ``fallbacks`` count how often that was asked and had to be done.
    """

    steps: int = 10
    step_size: float = 0.1
    searches: int = 0
    fallbacks: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.steps, bool) or not isinstance(self.steps, Integral) or self.steps < 0:
            raise InvalidInput(f"the search takes {self.steps!r} steps; that must be a whole number, 0 or more")
        number = isinstance(self.step_size, Real) and not isinstance(self.step_size, bool)
        if not number or not 0 < self.step_size < math.inf:
            raise InvalidInput(f"the step size of the search is {self.step_size!r}; it must be a positive number")

    def __call__(self, objective: Callable[[Tensor], Tensor], start: Tensor) -> Tensor | None:
        """The points that ascending from ``start`` leads to, or None if they are not finite."""
        z = start.detach()
        with torch.enable_grad():
            for _ in range(self.steps):
                here = z.detach().requires_grad_()
                (slope,) = torch.autograd.grad(objective(here), here)
                z = z + self.step_size * slope  # whatever is not finite once stays so to the end
        self.searches += 1
        if bool(z.isfinite().all()):
            return z
        self.fallbacks += 1
        return None
