"""Which codes to replay: the stored ones nearest to where the coming update interferes most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ...batch import Batch
from ...checks import check_candidates, check_coefficients, check_positive
from ...errors import InvalidType
from ...latent import LatentSearch, View, divergence, entropy
from ...losses import at_least_float32
from ...memory import Memory
from .codec import Codec

MEASURED_EVERY: Final = 10  # searches; measuring one takes two more passes
MEASURES: Final = ("objective", "interference", "entropy", "ahead_entropy")


@dataclass
class CodeSearch:
    """From the codes of the incoming batch, ascend

        Σ_i  kl · KL(y′ ‖ ŷ)_i − entropy · H(y′)_i − ahead_entropy · H(ŷ)_i

    with x the decoded code, y′ = f_θ′(x) the previous classifier's labels in place of the true ones, and ŷ = f_θᵛ(x)
    those after the virtual step; then retrieve the stored codes nearest to where that leads. It is Eq. 1 of the paper
    for codes; the defaults are the published numbers (1 step of 10, 20 : 1 : 1).

    Attributes:
        search: The gradient ascent.
        kl: The weight of interference.
        entropy: The weight of the previous classifier's uncertainty.
        ahead_entropy: The weight of the uncertainty after the virtual step.
        candidates: The number of stored codes to choose from, drawn at random; None for the whole memory.
    """

    search: LatentSearch = field(default_factory=lambda: LatentSearch(steps=1, step_size=10.0))
    kl: float = 20.0
    entropy: float = 1.0
    ahead_entropy: float = 1.0
    candidates: int | None = 500

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_coefficients(kl=self.kl, entropy=self.entropy, ahead_entropy=self.ahead_entropy)
        if not isinstance(self.search, LatentSearch):
            raise InvalidType(f"a search among codes ascends by a LatentSearch; this is {self.search!r}")
        if self.candidates is not None:
            check_positive(candidates=self.candidates)

    def retrieve(
        self, memory: Memory, codec: Codec, codes: Tensor, previous: View, ahead: View, exclude_task: Any, count: int
    ) -> Batch | None:
        """Return the ``count`` stored codes nearest to where the search leads from these, or None if it fails."""
        found = self(codec.floats(codes), partial(self._terms, codec, previous, ahead))
        if found is not None:
            if self.candidates is None:
                candidates = memory.all(exclude_task)
            else:
                candidates = memory.sample(self.candidates, exclude_task, ordered=True)
            near = distinct_neighbours(found, codec.floats(candidates.x), count)
            if near is not None:
                return candidates.take(near)
            self.search.fallbacks += 1  # finite points, but too far out for distances to be finite
        return None

    def __call__(self, codes: Tensor, terms_of: Callable[[Tensor], list[Tensor]]) -> Tensor | None:
        """Return where the search leads from these codes, or None if that is not finite; ``terms_of`` is `_terms`."""
        first: list[Tensor] = []

        def objective(z: Tensor) -> Tensor:
            terms = terms_of(z)
            first[:] = first or [term.detach() for term in terms]
            return terms[0].sum()

        found = self.search(objective, codes)
        if found is not None and self.search.searches % MEASURED_EVERY == 1:
            with torch.no_grad():
                self.search.note([*(first or terms_of(codes)), *terms_of(found)])
        return found

    def _terms(self, codec: Codec, previous: View, ahead: View, z: Tensor) -> list[Tensor]:
        """Return the objective of each point, and what it is made of, in the order of `MEASURES`."""
        x = codec.decode(z, previous.dtype or torch.float32)
        log_previous, log_ahead = previous.classify(x), ahead.classify(x)
        kl, uncertain, uncertain_after = divergence(log_previous, log_ahead), entropy(log_previous), entropy(log_ahead)
        objective = self.kl * kl - self.entropy * uncertain - self.ahead_entropy * uncertain_after
        return [objective, kl, uncertain, uncertain_after]

    def report(self) -> dict[str, Any]:
        """Return counts of searches and fallbacks, and means before and after, over every tenth search."""
        return self.search.report([f"{name}_{when}" for when in ("before", "after") for name in MEASURES])


def check_search(search: object, count: int) -> None:
    """Check that a search can retrieve so many codes."""
    if not isinstance(search, CodeSearch | None):
        raise InvalidType(f"search must be a CodeSearch, or None for codes at random; this is {search!r}")
    if search is not None:
        check_candidates(search.candidates, count)


def distinct_neighbours(points: Tensor, candidates: Tensor, count: int) -> Tensor | None:
    """Return the positions of ``count`` distinct candidates (or all) near the points; None if a distance is infinite.

    The points take turns: each takes the nearest candidate that is not taken yet, until there are enough. Of
    candidates at the same distance the earlier goes first.
    """
    points, candidates = at_least_float32(points.flatten(1)), at_least_float32(candidates.flatten(1))
    # |p − c|² = |p|² − 2 p·c + |c|²; the first term is the same for all candidates of a point.
    with torch.autocast(points.device.type, enabled=False):  # 8 bits of a distance cannot distinguish neighbours
        distances = torch.addmm(candidates.square().sum(1)[None], points, candidates.t(), alpha=-2)
    if not bool(distances.isfinite().all()):
        return None
    queues = [iter(order) for order in distances.argsort(dim=1, stable=True).tolist()]
    taken: dict[int, None] = {}
    count = min(count, len(candidates))
    while len(taken) < count:
        for queue in queues[: count - len(taken)]:
            taken[next(at for at in queue if at not in taken)] = None
    return torch.tensor(list(taken), dtype=torch.long)
