"""What the search in latent space looks for: Eq. 2 and 3 of the paper, term by term, one value per point each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...checks import check_coefficients
from ...latent import Elbo, View, divergence, entropy, gaussian_kl
from ...losses import at_least_float32
from ...random import RandomState, borrowed

Decode = Literal["own", "previous"]
Terms = dict[str, Tensor]
# Searches per measured one, if measuring takes passes of its own. It divides no round number of batches, so that no
# batch of a task is measured more often than others.
MEASURED_EVERY: Final = 7


@dataclass(frozen=True)
class Coefficients:
    """The weight of each term; a term of weight 0 is not computed.

    The defaults are the published ones of Split MNIST, whose cross-entropy 0.1 and entropy 1 are KL 0.1, entropy 0.9.

    Attributes:
        kl: Of the KL part of interference.
        reconstruction: Of its reconstruction part, which only the generator has.
        entropy: Of the uncertainty of the previous classifier, which is subtracted.
        diversity: Of the distances between the points.
        shell: Of the distance from the shell where the prior has its mass, which is subtracted.
    """

    kl: float = 0.1
    reconstruction: float = 0.0
    entropy: float = 0.9
    diversity: float = 1.0
    shell: float = 0.0

    def __post_init__(self) -> None:
        """Check the weights."""
        check_coefficients(**asdict(self))

    def weights(self) -> dict[str, float]:
        """Return the weights of the terms that networks compute, by name."""
        return {"kl": self.kl, "reconstruction": self.reconstruction, "entropy": -self.entropy}


def soft_cross_entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Return −Σ q log softmax(logits), one value per sample; classes that q does not have are of probability 0.

    A class of logit −∞ adds nothing if q is 0 there, and makes the loss infinite otherwise.
    """
    logits = at_least_float32(logits)
    q, lowest = F.pad(probabilities, (0, logits.shape[1] - probabilities.shape[1])), torch.finfo(logits.dtype).min
    return F.cross_entropy(torch.where(q > 0, logits, logits.clamp_min(lowest)), q, reduction="none")


def diversity(z: Tensor) -> Tensor:
    """Return 1/(n−1) Σ_{i<j} |z_i − z_j|² / D over all pairs, as one number: 0 if all points are the same.

    The sum over pairs is n times the sum of squared distances from the mean.
    """
    n, size = z.shape
    return (z - z.mean(0)).square().sum() * (n / max(n - 1, 1) / size)


def shell(z: Tensor) -> Tensor:
    """Return (|z| − √D)², the distance of a point from where nearly all of the prior's mass lies."""
    distance: Tensor = torch.linalg.vector_norm(z, dim=1) - math.sqrt(z.shape[1])
    return distance.square()


@dataclass
class Objective:
    """Σ_i [kl · KL_i + reconstruction · R_i − entropy · H_i − shell · S_i] + diversity · D(Z), to be maximized.

    Attributes:
        coefficients: The weights.
        terms: Computes the named terms of points.
        interference: The names of the terms whose sum is the interference.
        measured_every: How many searches there are per measured one: measuring terms of weight 0 takes passes that the
            search does not need.
        first: The terms of the first points, where a search starts.
    """

    coefficients: Coefficients
    terms: Callable[[Tensor, Iterable[str]], Terms]
    interference: tuple[str, ...]
    measured_every: int = 1
    first: Terms | None = None

    def __call__(self, z: Tensor) -> Tensor:
        """Return the objective of all points, as one number."""
        total = self.scores(z).sum()
        return total + self.coefficients.diversity * diversity(z) if self.coefficients.diversity else total

    def scores(self, z: Tensor) -> Tensor:
        """Return what each point contributes by itself."""
        weights = {name: weight for name, weight in self.coefficients.weights().items() if weight}
        total = 0 * z.sum(1)  # depends on z, so that there is a gradient even without terms
        found = self.terms(z, weights) if weights else {}
        if self.first is None:
            self.first = {name: value.detach() for name, value in found.items()}
        for name, weight in weights.items():
            total = total + weight * found[name]
        return total - self.coefficients.shell * shell(z) if self.coefficients.shell else total

    @torch.no_grad()
    def measure(self, z: Tensor, known: Terms | None = None, *, whole: bool = True) -> tuple[Tensor, Tensor]:
        """Return interference and entropy of each point.

        Args:
            z: The points.
            known: Terms of these points that need not be computed again.
            whole: Whether terms of weight 0 count even if they take passes that a step of the search does not need.
        """
        weights, found = self.coefficients.weights(), dict(known or {})
        parts = [name for name in self.interference if whole or self.measured_every == 1 or weights[name]]
        missing = [name for name in (*parts, "entropy") if name not in found]
        found |= self.terms(z, missing) if missing else {}
        return sum((found[name] for name in parts), torch.zeros_like(found["entropy"])), found["entropy"]


def classifier_objective(coefficients: Coefficients, generator: View, reference: View, ahead: View) -> Objective:
    """Return Eq. 2: KL(y_pre ‖ ŷ) − α H(y_pre), with y_pre = f_θ′(g(z)) and ŷ = f_θᵛ(g(z))."""

    def terms(z: Tensor, wanted: Iterable[str]) -> Terms:
        x = generator.decode(z)
        log_pre = reference.classify(x)
        found = {"entropy": entropy(log_pre)}
        return found | {"kl": divergence(log_pre, ahead.classify(x))} if "kl" in wanted else found

    return Objective(coefficients, terms, ("kl",))


def generator_objective(
    coefficients: Coefficients, classifier: View, reference: View, ahead: View, decode: Decode
) -> Objective:
    """Return Eq. 3: the rise of the two parts of −ELBO by the virtual step, and the previous classifier's entropy.

    In the paper each side judges what its own decoder makes of z. With ``decode="previous"`` both judge what the
    reference makes of it, as in the published runs.
    """

    # One draw of the noise of q(z|x) serves both sides and all steps, so that points differ by themselves alone. If
    # reconstruction has weight 0 it is only measured, always with the same noise, and no noise is drawn.
    noise = int(torch.randint(1 << 62, ())) if coefficients.reconstruction else 0

    def judged(network: View, x: Tensor) -> Elbo:
        with borrowed(RandomState(noise)):
            return network.loss(x)

    def terms(z: Tensor, wanted: Iterable[str]) -> Terms:
        x = reference.decode(z)
        found: Terms = {}
        if "reconstruction" in wanted:
            after, before = judged(ahead, ahead.decode(z) if decode == "own" else x), judged(reference, x)
            found = {"kl": after.kl - before.kl, "reconstruction": after.reconstruction - before.reconstruction}
        elif "kl" in wanted:
            after_kl = gaussian_kl(*ahead.encode(ahead.decode(z) if decode == "own" else x))
            found = {"kl": after_kl - gaussian_kl(*reference.encode(x))}
        return found | {"entropy": entropy(classifier.classify(x))} if "entropy" in wanted else found

    measured_every = 1 if coefficients.reconstruction else MEASURED_EVERY
    return Objective(coefficients, terms, ("kl", "reconstruction"), measured_every)
