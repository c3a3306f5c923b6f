"""How samples to replay are found: by a search in latent space, or as the best of more than are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor

from ...checks import check_choice, check_positive, is_number
from ...errors import InvalidInput, InvalidType
from ...latent import LatentSearch, View
from ...network import NamedGradient, Network, VirtualStep
from .objectives import Coefficients, Decode, Objective

MEASURES: Final = ("interference_before", "entropy_before", "interference_after", "entropy_after")


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
        check_choice(("prior", "encoder"), init=self.init)
        check_choice(("fresh", "stale"), gradient=self.gradient)
        check_choice(("snapshot", "current"), reference=self.reference)
        check_choice(get_args(Decode), decode=self.decode)
        check_choice(get_args(VirtualStep), virtual_step=self.virtual_step)
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
        after = None if found is None else objective.judge(found)
        if after is not None and not all(bool(values.isfinite().all()) for values in after):
            self.search.fallbacks += 1  # finite points, but so far out that the networks' outputs are not
            after = None
        if found is None or after is None:
            z = plain(count)
            return z, objective.judge(z)[0]
        if measured:
            before = objective.measure(first, objective.first)
            self.search.note([*before, *(after if objective.measured_every == 1 else objective.measure(found))])
        return found, after[0]

    def _best(self, objective: Objective, points: Tensor, count: int) -> Tensor | None:
        with torch.no_grad():
            scores = objective.scores(points)
        self.search.searches += 1
        if bool(scores.isfinite().all()):
            return points[scores.topk(count).indices]
        self.search.fallbacks += 1
        return None

    def report(self) -> dict[str, Any]:
        """Return counts of searches and fallbacks, and mean interference and entropy before and after a search.

        The means are over searches that were measured in full and did not fall back.
        """
        return self.search.report(MEASURES)


def check_retrievals(for_classifier: Any, for_generator: Any) -> None:
    """Check the retrievals of a learner."""
    for retrieval in (for_classifier, for_generator):
        if retrieval is not None and not isinstance(retrieval, LatentRetrieval):
            raise InvalidType(f"a generator's samples are retrieved by a LatentRetrieval; this is {retrieval!r}")
    if for_classifier is not None and for_classifier.coefficients.reconstruction:
        raise InvalidInput("a classifier reconstructs nothing: the coefficient reconstruction is the generator's alone")
    if for_classifier is not None and for_generator is not None and for_classifier.search is for_generator.search:
        raise InvalidInput("classifier and generator need a retrieval and a search each: they count what they find")
