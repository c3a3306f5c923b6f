"""How imagined rows are chosen: by a search in latent space, or by ranking more of them than are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ...checks import check_positive, is_number
from ...errors import InvalidInput, InvalidType
from ...latent import LatentSearch, View
from ...network import NamedGradient, Network, VirtualStep
from ...undo import Restore
from .objectives import Coefficients, Decode, Objective

Init = Literal["prior", "encoder"]
GradientOf = Literal["fresh", "stale"]
Reference = Literal["snapshot", "current"]


@dataclass
class LatentRetrieval:
    """Finds the points in latent space that the coming update interferes with most.

    - ``init``: where the search starts: the ``"prior"`` (the published settings), or the ``"encoder"``'s
      distribution of the incoming batch (the paper).
    - ``gradient``: of which loss the foreseen step is: ``"fresh"``, of the incoming batch at the present parameters
      (the paper); ``"stale"``, the one left over from the last step on the previous batch and its replay (the
      published program, in which the incoming batch does not enter the search at all).
    - ``reference``: θ′ (or φ′, γ′), against which interference is measured: the ``"snapshot"`` that the replay comes
      from, or the ``"current"`` parameters.
    - ``decode``: for the generator, whether each side of Eq. 3 decodes z with its ``"own"`` decoder, or both with the
      ``"previous"`` one.
    - ``virtual_step``: ``"sgd"``, parameters − rate × gradient, the rate being the optimiser's own or ``rate``; or
      ``"optimizer"``, exactly what that optimiser would do with the gradient next.
    - ``ranking``: instead of searching, draw so many times as many points and keep those of the highest objective
      (without the diversity term). 1 is the search.
    """

    search: LatentSearch = field(default_factory=LatentSearch)
    coefficients: Coefficients = field(default_factory=Coefficients)
    init: Init = "prior"
    gradient: GradientOf = "fresh"
    reference: Reference = "snapshot"
    decode: Decode = "own"
    virtual_step: VirtualStep = "sgd"
    rate: float | None = None
    ranking: int = 1

    def __post_init__(self) -> None:
        choices = {"init": Init, "gradient": GradientOf, "reference": Reference, "decode": Decode}
        for name, choice in (choices | {"virtual_step": VirtualStep}).items():
            if getattr(self, name) not in get_args(choice):
                raise InvalidInput(f"{name} is {getattr(self, name)!r}; it must be {' or '.join(get_args(choice))}")
        if not isinstance(self.search, LatentSearch) or not isinstance(self.coefficients, Coefficients):
            raise InvalidType(
                "a retrieval is made of a LatentSearch and Coefficients: LatentRetrieval(search, coefficients)"
            )
        check_positive(ranking=self.ranking)
        if self.rate is not None and not (is_number(self.rate) and self.rate > 0):
            raise InvalidInput(f"rate is {self.rate!r}; it must be positive, or None for the optimiser's own")
        self.measured = Measured()

    def view_ahead(self, network: Network, gradient: NamedGradient) -> View:
        """Return the network as the virtual step would make it."""
        ahead = network.look_ahead(gradient, self.virtual_step, self.rate)
        return View(network, network.twin.tensors() | ahead, network.precision.scoring)

    def __call__(
        self, objective: Objective, rows: int, start: Callable[[int], Tensor], plain: Callable[[int], Tensor]
    ) -> tuple[Tensor, Tensor]:
        """``rows`` points of high objective, and the interference of each, by what weighs of it.

        ``start`` draws points to begin with, ``plain`` those to fall back on.
        """
        measured = self.search.searches % objective.measured_every == 0
        first = start(rows * self.ranking)
        found = self.search(objective, first) if self.ranking == 1 else self._best(objective, first, rows)
        after = None if found is None else objective.judge(found)
        if after is not None and not all(bool(values.isfinite().all()) for values in after):
            self.search.fallbacks += 1  # finite points, but so far out that the networks make no numbers of them
            after = None
        if found is None or after is None:
            z = plain(rows)
            return z, objective.judge(z)[0]
        if measured:
            before = objective.measure(first, objective.first)
            full = after if objective.measured_every == 1 else objective.measure(found)
            self.measured = self.measured.plus(before, full)
        return found, after[0]

    def _best(self, objective: Objective, points: Tensor, rows: int) -> Tensor | None:
        with torch.no_grad():
            scores = objective.scores(points)
        self.search.searches += 1
        if bool(scores.isfinite().all()):
            return points[scores.topk(rows).indices]
        self.search.fallbacks += 1
        return None

    def report(self) -> dict[str, Any]:
        """How often it searched and fell back to plain samples, and the mean of what it measured before and after,
        over those searches of which all was measured and that found something."""
        counts = {"searches": self.search.searches, "fallbacks": self.search.fallbacks, "measured": self.measured.count}
        return counts | self.measured.means()

    def snapshot(self) -> Restore:
        """Return a function that restores what was counted."""
        counts, measured = (self.search.searches, self.search.fallbacks), self.measured

        def restore() -> None:
            self.search.searches, self.search.fallbacks = counts
            self.measured = measured

        return restore

    def state_dict(self) -> dict[str, Any]:
        return {
            "searches": self.search.searches,
            "fallbacks": self.search.fallbacks,
            "count": self.measured.count,
            "sums": list(self.measured.sums),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.search.searches, self.search.fallbacks = int(state["searches"]), int(state["fallbacks"])
        self.measured = Measured(int(state["count"]), tuple(map(float, state["sums"])))


MEASURES = ("interference_before", "entropy_before", "interference_after", "entropy_after")


@dataclass(frozen=True)
class Measured:
    """Sums of mean interference and entropy over searches, before and after."""

    count: int = 0
    sums: tuple[float, ...] = (0.0,) * len(MEASURES)

    def plus(self, before: tuple[Tensor, Tensor], after: tuple[Tensor, Tensor]) -> Measured:
        """Return the sums with one search more; one that starts where the networks return no numbers has no mean."""
        means = torch.stack([values.mean() for values in (*before, *after)])
        if not bool(means.isfinite().all()):
            return self
        return Measured(self.count + 1, tuple(map(sum, zip(self.sums, means.tolist(), strict=True))))

    def means(self) -> dict[str, float | None]:
        """Return the means, by name."""
        named = zip(MEASURES, self.sums, strict=True)
        return {name: total / self.count if self.count else None for name, total in named}


def check_retrievals(for_classifier: Any, for_generator: Any) -> None:
    """Refuse what a learner could not search with, or could not count."""
    for retrieval in (for_classifier, for_generator):
        if retrieval is not None and not isinstance(retrieval, LatentRetrieval):
            raise InvalidType(f"what is imagined is retrieved by a LatentRetrieval; this is {retrieval!r}")
    if for_classifier is not None and for_classifier.coefficients.reconstruction:
        raise InvalidInput(
            "a classifier reconstructs nothing: the coefficient reconstruction is for the generator alone"
        )
    if for_classifier is not None and for_generator is not None and for_classifier.search is for_generator.search:
        raise InvalidInput("classifier and generator need a retrieval and a search each: they count what they find")
