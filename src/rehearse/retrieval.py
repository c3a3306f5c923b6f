"""Retrievals: which stored samples to replay.

A retrieval is an object that is called ``(memory, incoming, gradient, engine, budget)`` and returns the samples to
replay with their interference, or ``(None, None)``. To write one, see `Retrieval`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

import torch
from torch import Tensor

from .batch import Batch
from .checks import check_choice, check_limit
from .engine import Engine, Layers
from .memory import Memory
from .network import VirtualStep

BEST_LOSS: Final = "best_loss"


class Retrieved(NamedTuple):
    """The samples to replay and their interference, highest first; None where there are none, or none were scored."""

    batch: Batch | None = None
    interference: Tensor | None = None


class Retrieval(Protocol):
    """Chooses stored samples for an incoming batch.

    Samples of ``incoming.task`` are not eligible: ask the memory with ``exclude_task=incoming.task``. There is at least
    one that is, or the learner does not ask.

    It reads the memory and changes none of its samples. What it wants to remember of them it notes there
    (`Memory.note`, after `Memory.fact` has said what stands where nothing was noted): facts are undone if the batch
    fails, and go when their sample goes. Its own attributes are neither undone nor saved. It calls ``engine.losses``
    and ``engine.named``, not ``engine.gradient``: a training pass would move the model's buffers and random state.

    An attribute ``draws`` says that it returns up to so many times the budget: a batch for each term of a loss.
    """

    needs_gradient: bool
    """Whether the gradient of the incoming batch is used. If not, it may be None."""

    def __call__(
        self, memory: Memory, incoming: Batch, gradient: Any, engine: Engine, budget: int
    ) -> tuple[Batch | None, Tensor | None]:
        """Return at most ``budget`` samples and their interference.

        Args:
            memory: Where to choose from: `Memory.sample`, `Memory.all`, `Memory.fact`.
            incoming: The incoming batch; its task is None if all stored samples are eligible.
            gradient: Of the incoming batch's mean loss, to be handed on to ``engine.losses``;
                ``engine.named(gradient)`` is a dict of tensors by parameter name.
            engine: ``engine.losses(candidates, gradient)`` returns the losses before and after the virtual step;
                ``engine.losses(candidates)`` makes one pass and returns the losses now, twice.
            budget: The number of samples to return, at most.
        """


class Uniform:
    """Retrieve at random: experience replay (ER).

    With ``candidates``, that many samples pass through the network as in `MostInterfered`, and the budget is taken
    from them at random: a control that has everything of interfered retrieval but the choice.
    """

    needs_gradient = False

    def __init__(self, candidates: int | None = None) -> None:
        """Set how many samples pass through the network; none by default."""
        check_limit(candidates=candidates)
        self.candidates = candidates

    def __call__(self, memory: Memory, incoming: Batch, gradient: Any, engine: Engine, budget: int) -> Retrieved:
        """Return a random sample of the memory."""
        if self.candidates is None:
            return Retrieved(memory.sample(budget, exclude_task=incoming.task))
        candidates = memory.sample(max(self.candidates, budget), exclude_task=incoming.task)
        engine.losses(candidates)
        return Retrieved(candidates.take(torch.arange(min(budget, len(candidates)))))


@dataclass(eq=False)
class MostInterfered:
    """Retrieve the samples whose loss the coming step would raise most (MIR).

    Of C candidates drawn at random, those with the highest

        MI-1   s(x) = ℓ(f_θᵛ(x), y) − ℓ(f_θ(x), y)
        MI-2   s(x) = ℓ(f_θᵛ(x), y) − min(ℓ(f_θ(x), y), ℓ*(x))

    where θᵛ are the look-ahead parameters and ℓ*(x) is the lowest loss of x in scoring so far.

    Attributes:
        candidates: C, or None for the whole memory. The paper has 50, and 25 on Mini-ImageNet.
        criterion: The paper has ``mi2`` on MNIST and ``mi1`` elsewhere.
        layers: ``head`` steps the last layer alone, which needs one pass through the body instead of two.
        virtual_step: ``sgd`` as in the paper, or ``optimizer`` for the optimizer's own next step.

    Raises:
        InvalidInput: If one of them is not one of the above.
    """

    needs_gradient = True

    candidates: int | None = 50
    criterion: Literal["mi1", "mi2"] = "mi1"
    _: KW_ONLY
    layers: Layers = "all"
    virtual_step: VirtualStep = "sgd"

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_limit(candidates=self.candidates)
        check_choice(("mi1", "mi2"), criterion=self.criterion)
        check_choice(get_args(Layers), layers=self.layers)
        check_choice(get_args(VirtualStep), virtual_step=self.virtual_step)

    def __call__(self, memory: Memory, incoming: Batch, gradient: Any, engine: Engine, budget: int) -> Retrieved:
        """Return the candidates with the highest interference; ties go to the lower slot."""
        if self.candidates is None:
            candidates = memory.all(exclude_task=incoming.task)
        else:
            candidates = memory.sample(self.candidates, exclude_task=incoming.task, ordered=True)  # B_C ~ M
        before, after = engine.losses(candidates, gradient, virtual_step=self.virtual_step, layers=self.layers)
        if self.criterion == "mi2":
            before = _best(memory, candidates, before)
        scores = torch.nan_to_num(after - before, nan=torch.inf, posinf=torch.inf)  # a loss of NaN is the worst
        ranked, order = scores.sort(descending=True, stable=True)
        return Retrieved(candidates.take(order[:budget].cpu()), ranked[:budget])  # B_MC


def _best(memory: Memory, candidates: Batch, losses: Tensor) -> Tensor:
    """Return the lowest loss of each candidate so far, and note it."""
    assert candidates.slots is not None
    best = torch.fmin(losses, memory.fact(BEST_LOSS, candidates.slots, fill=torch.inf).to(losses))
    memory.note(BEST_LOSS, candidates.slots, best)
    return torch.minimum(losses, best)  # NaN, which is not noted, counts now
