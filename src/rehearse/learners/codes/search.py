"""Which codes to recall: the stored ones next to where the coming update interferes most."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ...batch import Batch
from ...checks import check_coefficients, check_positive
from ...errors import InvalidInput, InvalidType
from ...latent import LatentSearch, View, divergence, entropy
from ...losses import at_least_float32
from ...memory import Memory
from ...undo import Restore
from .codec import Codec

MEASURED_EVERY: Final = 10  # searches; to measure one takes two more passes
MEASURES: Final = ("objective", "interference", "entropy", "ahead_entropy")


@dataclass
class CodeSearch:
    """From the codes of the incoming batch, ascend

        Σ_i  kl · KL(y′ ‖ ŷ)_i − entropy · H(y′)_i − ahead_entropy · H(ŷ)_i

    with x = the decoded code, y′ = f_θ′(x) the previous classifier's labels in place of the true ones and ŷ = f_θᵛ(x)
    those after the ahead step; then recall the stored codes nearest to where that leads. It is Eq. 1 of the paper
    in its coded form; the defaults are the published numbers (1 step of 10, 20 : 1 : 1).

    ``candidates`` stored codes are drawn at random to choose from; None takes the whole memory.
    """

    search: LatentSearch = field(default_factory=lambda: LatentSearch(steps=1, step_size=10.0))
    kl: float = 20.0
    entropy: float = 1.0
    ahead_entropy: float = 1.0
    candidates: int | None = 500

    def __post_init__(self) -> None:
        check_coefficients(kl=self.kl, entropy=self.entropy, ahead_entropy=self.ahead_entropy)
        if not isinstance(self.search, LatentSearch):
            raise InvalidType(f"a search among codes ascends by a LatentSearch; this is {self.search!r}")
        if self.candidates is not None:
            check_positive(candidates=self.candidates)
        self.measured = 0
        self.sums = [0.0] * (2 * len(MEASURES))

    def retrieve(
        self,
        memory: Memory,
        codec: Codec,
        codes: Tensor,
        previous: View,
        ahead: View,
        exclude_task: Tensor | int | None,
        count: int,
    ) -> Batch:
        """``count`` stored codes, those nearest to where the search leads from these; random ones if that fails."""
        decode = partial(codec.decode, dtype=previous.dtype or torch.float32)
        found = self(codec.floats(codes), decode, previous, ahead)
        if found is None:
            return memory.sample(count, exclude_task)
        if self.candidates is None:
            candidates = memory.all(exclude_task)
        else:
            candidates = memory.sample(self.candidates, exclude_task, ordered=True)
        near = distinct_neighbours(found, codec.floats(candidates.x), count)
        if near is None:
            self.search.fallbacks += 1  # finite points, but so far out that nothing is nearer to them than all else
            return memory.sample(count, exclude_task)
        return candidates.take(near)

    def __call__(self, codes: Tensor, decode: Callable[[Tensor], Tensor], previous: View, ahead: View) -> Tensor | None:
        """Where the search leads from these codes, or None where that is not finite."""
        first: list[Tensor] = []

        def objective(z: Tensor) -> Tensor:
            terms = self._terms(z, decode, previous, ahead)
            first[:] = first or [term.detach() for term in terms]
            return terms[0].sum()

        found = self.search(objective, codes)
        if found is not None and self.search.searches % MEASURED_EVERY == 1:
            with torch.no_grad():
                before = first or self._terms(codes, decode, previous, ahead)
                self._note(before, self._terms(found, decode, previous, ahead))
        return found

    def _terms(self, z: Tensor, decode: Callable[[Tensor], Tensor], previous: View, ahead: View) -> list[Tensor]:
        """The objective of each point, and what it is made of, in the order of `MEASURES`."""
        x = decode(z)
        log_previous, log_ahead = previous.classify(x), ahead.classify(x)
        kl = divergence(log_previous, log_ahead)
        uncertain, uncertain_after = entropy(log_previous), entropy(log_ahead)
        objective = self.kl * kl - self.entropy * uncertain - self.ahead_entropy * uncertain_after
        return [objective, kl, uncertain, uncertain_after]

    def _note(self, before: list[Tensor], after: list[Tensor]) -> None:
        means = torch.stack([values.mean() for values in (*before, *after)])
        if bool(means.isfinite().all()):
            self.measured += 1
            self.sums = [total + mean for total, mean in zip(self.sums, means.tolist(), strict=True)]

    def report(self) -> dict[str, Any]:
        """How often it searched and fell back to a random draw; means before and after, over every tenth search."""
        names = [f"{name}_{when}" for when in ("before", "after") for name in MEASURES]
        means = {
            name: total / self.measured if self.measured else None for name, total in zip(names, self.sums, strict=True)
        }
        return {"searches": self.search.searches, "fallbacks": self.search.fallbacks, "measured": self.measured} | means

    def snapshot(self) -> Restore:
        """Return a function that restores what was counted."""
        state = self.state_dict()
        return lambda: self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        counts = {"searches": self.search.searches, "fallbacks": self.search.fallbacks}
        return counts | {"measured": self.measured, "sums": list(self.sums)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.search.searches, self.search.fallbacks = int(state["searches"]), int(state["fallbacks"])
        self.measured, self.sums = int(state["measured"]), [float(total) for total in state["sums"]]


def check_search(search: object, recalled: int) -> None:
    """Refuse what could not choose so many codes."""
    if not isinstance(search, CodeSearch):
        raise InvalidType(f"search must be a CodeSearch, or None for codes at random; this is {search!r}")
    if search.candidates is not None and search.candidates < recalled:
        raise InvalidInput(
            f"{search.candidates} candidates are fewer than the {recalled} codes that are to be recalled of them; "
            "raise candidates or lower budget"
        )


def distinct_neighbours(points: Tensor, candidates: Tensor, count: int) -> Tensor | None:
    """The rows of ``count`` candidates near the points, none twice; all where there are fewer. None where a distance is
    beyond what numbers can tell.

    The points take turns: each takes the nearest candidate that nobody has taken yet, until there are enough. Of
    candidates at the same distance the earlier goes first.
    """
    points, candidates = at_least_float32(points.flatten(1)), at_least_float32(candidates.flatten(1))
    # |p − c|² = |p|² − 2 p·c + |c|²; the first term is the same for all candidates of a point.
    with torch.autocast(points.device.type, enabled=False):  # 8 bits of a distance do not tell neighbours apart
        distances = torch.addmm(candidates.square().sum(1)[None], points, candidates.t(), alpha=-2)
    if not bool(distances.isfinite().all()):
        return None
    queues = [iter(row) for row in distances.argsort(dim=1, stable=True).tolist()]
    taken: dict[int, None] = {}
    count = min(count, len(candidates))
    while len(taken) < count:
        for queue in queues[: count - len(taken)]:
            taken[next(row for row in queue if row not in taken)] = None
    return torch.tensor(list(taken), dtype=torch.long)
