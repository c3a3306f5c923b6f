"""How samples to replay are found: by a search in latent space, or as the best of more than are needed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import torch
from torch import Tensor

from ...checks import check_literals, check_positive, is_number
from ...errors import InvalidInput, InvalidType, NotFinite
from ...latent import LatentSearch, View, check_rebuilt
from ...network import NamedGradient, Network, VirtualStep
from .objectives import Coefficients, Decode, Objective

MEASURES: Final = ("interference_before", "entropy_before", "interference_after", "entropy_after")


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


@dataclass
class LatentRetrieval:
    """Finds the points in latent space that the coming update interferes with most.

    Attributes:
        search: The gradient ascent.
        coefficients: Of its objective.
        init: Where the search starts: the ``prior`` (the published settings), or the ``encoder``'s distribution of the
            incoming batch (the paper).
        gradient: Of which loss the virtual step is: ``fresh``, of the incoming batch at the present parameters (the
            paper); ``stale``, left over from the last step on the previous batch and its replay (the reference
            implementation, in which the incoming batch has no effect on the search).
        reference: θ′ (or φ′, γ′), against which interference is measured: the ``snapshot`` that the replay comes from,
            or the ``current`` parameters.
        decode: For the generator, whether each side of Eq. 3 decodes z with its ``own`` decoder, or both with the
            ``previous`` one.
        virtual_step: ``sgd``, parameters − rate × gradient; or ``optimizer``, the optimizer's own next step.
        rate: The rate of ``sgd``; the optimizer's own by default.
        ranking: Instead of searching, draw so many times as many points and keep those of the highest objective,
            without its diversity term. 1 is the search.
    """

    search: LatentSearch = field(default_factory=LatentSearch)
    coefficients: Coefficients = field(default_factory=Coefficients)
    init: Literal["prior", "encoder"] = "prior"
    gradient: Literal["fresh", "stale"] = "fresh"
    reference: Literal["snapshot", "current"] = "snapshot"
    decode: Decode = "own"
    virtual_step: VirtualStep = "sgd"
    rate: float | None = None
    ranking: int = 1

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_literals(self)
        if not isinstance(self.search, LatentSearch) or not isinstance(self.coefficients, Coefficients):
            raise InvalidType("a retrieval is made of a LatentSearch and Coefficients: LatentRetrieval(search, ...)")
        check_positive(ranking=self.ranking)
        if self.rate is not None and not (is_number(self.rate) and self.rate > 0):
            raise InvalidInput(f"rate is {self.rate!r}; it must be positive, or None for the optimizer's own")

    def view_ahead(self, network: Network, gradient: NamedGradient) -> View:
        """Return the network as the virtual step would make it."""
        ahead = network.look_ahead(gradient, self.virtual_step, self.rate)
        return View.scoring(network, network.twin.tensors() | ahead)

    def __call__(
        self, objective: Objective, count: int, start: Callable[[int], Tensor], plain: Callable[[int], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return ``count`` points of high objective, and the interference of each, without terms of weight 0.

        Args:
            objective: To ascend.
            count: The number of points.
            start: Draws points to start from.
            plain: Draws points to fall back on.
        """
        measured = self.search.searches % objective.measured_every == 0
        first = start(count * self.ranking)
        found = self.search(objective, first) if self.ranking == 1 else self._best(objective, first, count)
        if found is not None:
            after = objective.measure(found, whole=False)
            if self.search.usable(*after):  # finite points may be so far out that the networks' outputs are not
                if measured:
                    whole = after if objective.measured_every == 1 else objective.measure(found)
                    self.search.note([*objective.measure(first, objective.first), *whole])
                return found, after[0]
        found = plain(count)
        return found, objective.measure(found, whole=False)[0]

    def _best(self, objective: Objective, points: Tensor, count: int) -> Tensor | None:
        with torch.no_grad():
            scores = objective.scores(points)
        self.search.searches += 1
        return points[scores.topk(count).indices] if self.search.usable(scores) else None

    def report(self) -> dict[str, Any]:
        """Return counts of searches and fallbacks, and mean interference and entropy before and after a search.

        The means are over searches that were measured in full and did not fall back.
        """
        return self.search.report(MEASURES)


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


def check_retrievals(for_classifier: Any, for_generator: Any) -> None:
    """Check the retrievals of a learner."""
    for retrieval in (for_classifier, for_generator):
        if retrieval is not None and not isinstance(retrieval, LatentRetrieval):
            raise InvalidType(f"a generator's samples are retrieved by a LatentRetrieval; this is {retrieval!r}")
    if for_classifier is not None and for_classifier.coefficients.reconstruction:
        raise InvalidInput("a classifier reconstructs nothing: the coefficient reconstruction is the generator's alone")
    if for_classifier is not None and for_generator is not None and for_classifier.search is for_generator.search:
        raise InvalidInput("classifier and generator need a retrieval and a search each: they count what they find")


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
        codes, shape = network.ask("encode", x, tensors), (len(x), latent)
        if not _are_two(codes, shape):
            raise InvalidInput(f"generator.encode must return a tuple of a mean and a log-variance of shape {shape}")
        with torch.enable_grad():
            decoded = network.ask("decode", codes[0].detach().requires_grad_(), tensors)
        check_rebuilt(x, decoded, "generator")
        if not bool(decoded.isfinite().all()):
            raise InvalidInput("generator.decode returns numbers that are not finite")
        if searched and not decoded.requires_grad:
            raise InvalidInput("generator.decode passes no gradient on to z, so there is nothing to search by")
        if not _are_two(network.ask("loss", x, tensors), (len(x),)):
            raise InvalidInput("generator.loss must return a tuple of reconstruction and KL, one value per sample")


def _are_two(values: Any, shape: tuple[int, ...]) -> bool:
    pair = isinstance(values, tuple) and len(values) == 2
    return pair and all(isinstance(value, Tensor) and value.shape == shape for value in values)
