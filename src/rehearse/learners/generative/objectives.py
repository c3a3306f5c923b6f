"""What the search in latent space looks for: Eq. 2 and 3 of the paper, term by term, one value a point each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
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
Terms = Callable[[Tensor, Iterable[str]], dict[str, Tensor]]
# Of so many searches one is measured, where that takes passes of its own. It divides no round number of batches, so
# that none of a task's is met more often than others.
MEASURED_EVERY: Final = 7


@dataclass(frozen=True)
class Coefficients:
    """The weight of each term; a term of weight 0 is not computed.

    ``kl`` and ``reconstruction`` weigh interference (the classifier's has the former alone), ``entropy`` the
    uncertainty of the previous classifier, which is subtracted, ``diversity`` the distances between the points, and
    ``shell`` the distance from the shell where the prior lives, which is subtracted. The defaults are the published
    ones of Split MNIST, whose cross-entropy 0.1 and entropy 1 are KL 0.1 and entropy 0.9.
    """

    kl: float = 0.1
    reconstruction: float = 0.0
    entropy: float = 0.9
    diversity: float = 1.0
    shell: float = 0.0

    def __post_init__(self) -> None:
        check_coefficients(**asdict(self))


def soft_cross_entropy(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Return −Σ q log softmax(logits), one value per sample; classes that q does not have are of probability 0.

    A class of logit −∞ adds nothing if q is 0 there, and makes the loss infinite otherwise.
    """
    logits = at_least_float32(logits)
    q, lowest = F.pad(probabilities, (0, logits.shape[1] - probabilities.shape[1])), torch.finfo(logits.dtype).min
    return F.cross_entropy(torch.where(q > 0, logits, logits.clamp_min(lowest)), q, reduction="none")


def diversity(z: Tensor) -> Tensor:
    """1/(n−1) Σ_{i<j} |z_i − z_j|² / D over all pairs, as one number: 0 where all points are one.

    The sum over pairs is n times the sum of squared distances from the mean.
    """
    n, size = z.shape
    total: Tensor = (z - z.mean(0)).square().sum() * (n / max(n - 1, 1) / size)
    return total


def shell(z: Tensor) -> Tensor:
    """(|z| − √D)²: how far a point is from where nearly all of the prior's mass lies."""
    distance: Tensor = torch.linalg.vector_norm(z, dim=1) - math.sqrt(z.shape[1])
    return distance.square()


@dataclass
class Objective:
    """Σ_i [kl · KL_i + reconstruction · R_i − entropy · H_i − shell · S_i] + diversity · D(Z), to be maximized.

    ``interference`` names the terms whose sum is the interference; where some of them weigh nothing, to measure them
    takes passes that the search does not need, and ``measured_every`` says of how many searches one is. ``first`` are
    the terms of the points that it was asked about first, where a search starts.
    """

    coefficients: Coefficients
    terms: Terms
    interference: tuple[str, ...]
    measured_every: int = 1
    first: dict[str, Tensor] | None = None

    def __call__(self, z: Tensor) -> Tensor:
        total = self.scores(z).sum()
        return total + self.coefficients.diversity * diversity(z) if self.coefficients.diversity else total

    def scores(self, z: Tensor) -> Tensor:
        """What each point contributes by itself."""
        c, weights = self.coefficients, self._weights()
        wanted = [name for name, weight in weights.items() if weight]
        total = 0 * z.sum(1)  # depends on z, so that there is a gradient even where no term is wanted
        found = self.terms(z, wanted) if wanted else {}
        if self.first is None:
            self.first = {name: value.detach() for name, value in found.items()}
        for name in wanted:
            total = total + weights[name] * found[name]
        return total - c.shell * shell(z) if c.shell else total

    @torch.no_grad()
    def measure(self, z: Tensor, known: Mapping[str, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Interference and entropy of each point, whatever they weigh; terms that are known are not computed again."""
        return self._measured(z, self.interference, known or {})

    @torch.no_grad()
    def judge(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The same at no more passes than a step of the search takes: where that is less, by what weighs of it."""
        weights = self._weights()
        weighed = tuple(name for name in self.interference if weights[name])
        return self._measured(z, self.interference if self.measured_every == 1 else weighed, {})

    def _measured(self, z: Tensor, parts: Sequence[str], known: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        found = dict(known)
        missing = [name for name in (*parts, "entropy") if name not in found]
        if missing:
            found |= self.terms(z, missing)
        total = torch.zeros_like(found["entropy"])
        for name in parts:
            total = total + found[name]
        return total, found["entropy"]

    def _weights(self) -> dict[str, float]:
        c = self.coefficients
        return {"kl": c.kl, "reconstruction": c.reconstruction, "entropy": -c.entropy}


def classifier_objective(coefficients: Coefficients, generator: View, reference: View, ahead: View) -> Objective:
    """Eq. 2: KL(y_pre ‖ ŷ) − α H(y_pre), with y_pre = f_θ′(g(z)) and ŷ = f_θᵛ(g(z))."""

    def terms(z: Tensor, wanted: Iterable[str]) -> dict[str, Tensor]:
        x = generator.decode(z)
        log_pre = reference.classify(x)
        found = {"entropy": entropy(log_pre)}
        if "kl" in wanted:
            found["kl"] = divergence(log_pre, ahead.classify(x))
        return found

    return Objective(coefficients, terms, ("kl",))


def generator_objective(
    coefficients: Coefficients, classifier: View, reference: View, ahead: View, decode: Decode
) -> Objective:
    """Eq. 3: what the ahead step adds to the two parts of −ELBO; and the entropy of the previous classifier.

    As written, each side judges what its own decoder makes of z; with ``decode="previous"`` both judge what the
    reference makes of it, as the published runs do.
    """

    # One draw of the noise of q(z|x) serves both sides and all steps: what differs between two points is the points.
    # Where reconstruction weighs nothing it is only measured, always with the same noise and without drawing any.
    noise = RandomState(int(torch.randint(1 << 62, ())) if coefficients.reconstruction else 0)

    def judged(network: View, x: Tensor) -> Elbo:
        with borrowed(noise):
            return network.loss(x)

    def terms(z: Tensor, wanted: Iterable[str]) -> dict[str, Tensor]:
        x = reference.decode(z)
        found: dict[str, Tensor] = {}
        if "reconstruction" in wanted:
            after, before = judged(ahead, ahead.decode(z) if decode == "own" else x), judged(reference, x)
            found = {"kl": after.kl - before.kl, "reconstruction": after.reconstruction - before.reconstruction}
        elif "kl" in wanted:
            after_kl = gaussian_kl(*ahead.encode(ahead.decode(z) if decode == "own" else x))
            found = {"kl": after_kl - gaussian_kl(*reference.encode(x))}
        if "entropy" in wanted:
            found["entropy"] = entropy(classifier.classify(x))
        return found

    measured_every = 1 if coefficients.reconstruction else MEASURED_EVERY
    return Objective(coefficients, terms, ("kl", "reconstruction"), measured_every)
