"""Search in a latent space: gradient ascent on an objective over z, and the protocols of the networks behind it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from .checks import check, check_above_zero, count, is_whole
from .errors import CheckpointError, InvalidInput
from .losses import at_least_float32
from .network import Network
from .undo import Restore

COUNTS: Final = ("searches", "fallbacks", "measured", "sums")


class Elbo(NamedTuple):
    """The negative evidence lower bound in its two parts, one value per sample each."""

    reconstruction: Tensor
    kl: Tensor

    def total(self, beta: float = 1.0) -> Tensor:
        """Return reconstruction + β · KL; β = 1 is the bound itself."""
        return self.reconstruction + beta * self.kl


def gaussian_kl(mean: Tensor, log_variance: Tensor) -> Tensor:
    """Return KL(N(μ, diag σ²) ‖ N(0, I)) = ½ Σ (μ² + σ² − 1 − log σ²), one value per sample."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1)


def divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p ‖ q) = Σ p (log p − log q); classes that are impossible under p, or that only q has, add nothing."""
    ratio = (log_p - log_q[:, : log_p.shape[1]]).masked_fill(log_p == -math.inf, 0)
    return (log_p.exp() * ratio).sum(1)


def entropy(log_p: Tensor) -> Tensor:
    """Return H(p) = −Σ p log p: 0 where the classifier is certain."""
    return -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(1)  # 0 log 0 = 0


@runtime_checkable
class Generator(Protocol):
    """What a generator defines, besides being an ``nn.Module``.

    ``latent`` is the size of z, whose prior is the standard normal. Inputs are those of the classifier, after
    ``prepare``; ``decode`` returns such inputs.
    """

    latent: int

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of q(z|x), one row per sample."""

    def decode(self, z: Tensor) -> Tensor:
        """Return the mean of p(x|z)."""

    def loss(self, x: Tensor) -> Elbo:
        """Return −ELBO of each sample, in its two parts."""


@runtime_checkable
class Autoencoder(Protocol):
    """What an autoencoder defines, besides being an ``nn.Module``.

    Inputs are those of the classifier, after ``prepare``. A code is a tensor of floats of any shape, the same for
    every sample.
    """

    def encode(self, x: Tensor) -> Tensor:
        """Return the code of each sample."""

    def decode(self, code: Tensor) -> Tensor:
        """Return an input for each code."""


def check_rebuilt(x: Tensor, rebuilt: Any, name: str) -> None:
    """Check that the decoder of a second network returned inputs like these."""
    if not isinstance(rebuilt, Tensor) or rebuilt.shape != x.shape:
        found = tuple(rebuilt.shape) if isinstance(rebuilt, Tensor) else f"a {type(rebuilt).__name__}"
        raise InvalidInput(f"{name}.decode returns {found} for inputs of shape {tuple(x.shape)}")


class View(NamedTuple):
    """A network with other tensors in place of its own, inside `Network.looking`; the model is not touched."""

    network: Network
    tensors: Mapping[str, Tensor]
    dtype: torch.dtype | None = None

    @classmethod
    def scoring(cls, network: Network, tensors: Mapping[str, Tensor]) -> View:
        """Return a view in the precision of scoring."""
        return cls(network, tensors, network.precision.scoring)

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
    """z ← z + step_size · ∇objective(z), ``steps`` times; counts what it did.

    All points are moved together, as one batch: the objective is one number for all of them. As it is a sum over
    points, the step of a point does not depend on how many there are. With 0 steps the points stay where they start.

    Attributes:
        steps: The number of steps.
        step_size: The factor of the gradient.
        searches: How often it searched.
        fallbacks: How often the result could not be used, so that the caller replayed other samples.
        measured: How many searches were measured.
        sums: Over these, the sums of what was measured.
    """

    steps: int = 10
    step_size: float = 0.1

    def __post_init__(self) -> None:
        """Check the arguments, and start to count."""
        self.searches = self.fallbacks = self.measured = 0
        self.sums: list[float] = []
        if not is_whole(self.steps) or self.steps < 0:
            raise InvalidInput(f"the search takes {self.steps!r} steps; that must be a whole number, 0 or more")
        check_above_zero(step_size=self.step_size)

    def __call__(self, objective: Callable[[Tensor], Tensor], start: Tensor) -> Tensor | None:
        """Return the points that ascending from ``start`` leads to, or None if they are not finite."""
        z = start.detach()
        with torch.enable_grad():
            for _ in range(self.steps):
                here = z.detach().requires_grad_()
                (slope,) = torch.autograd.grad(objective(here), here)
                z = z + self.step_size * slope  # whatever is not finite once stays so to the end
        self.searches += 1
        return z if self.usable(z) else None

    def usable(self, *values: Tensor) -> bool:
        """Return whether all values are finite; if not, that is a fallback."""
        finite = all(bool(value.isfinite().all()) for value in values)
        self.fallbacks += not finite
        return finite

    def note(self, values: Sequence[Tensor]) -> None:
        """Add the means of what one search measured, if they are finite."""
        means = torch.stack([value.mean() for value in values])
        if bool(means.isfinite().all()):
            self.measured += 1
            self.sums = [total + mean for total, mean in zip(self.sums or repeat(0.0), means.tolist(), strict=False)]

    def report(self, names: Sequence[str]) -> dict[str, Any]:
        """Return the counts, and the means of what was measured, by name."""
        counts = {"searches": self.searches, "fallbacks": self.fallbacks, "measured": self.measured}
        means = {name: total / self.measured for name, total in zip(names, self.sums, strict=False)}
        return counts | dict.fromkeys(names) | means

    def snapshot(self) -> Restore:
        """Return a function that restores the counts."""
        return partial(self.load_state_dict, self.state_dict())  # before the first search they are the class's

    def state_dict(self) -> dict[str, Any]:
        """Return the counts."""
        return {name: getattr(self, name) for name in COUNTS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        form = dict.fromkeys(COUNTS, count) | {"sums": lambda sums: all(type(one) is float for one in sums)}
        check(state, form, "the counts of a search")
        if bool(state["measured"]) != bool(state["sums"]):
            raise CheckpointError(f"{state['measured']} searches were measured, with {len(state['sums'])} sums")
        vars(self).update(state)
