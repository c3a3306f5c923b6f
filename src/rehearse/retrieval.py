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
from .checks import check_choice, check_limit, check_positive
from .described import Described
from .engine import Engine, Layers
from .memory import Memory
from .network import VirtualStep

BEST_LOSS: Final = "best_loss"
WAITING: Final = "waiting"
"""Facts of stored samples: the lowest loss so far; the interference of a sample that is replayed in a later step."""


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


class Uniform(Described):
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


@dataclass(eq=False, repr=False)
class MostInterfered(Described):
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
        every: Score in every so many steps only: the best of the candidates are then replayed in as many steps, the
            highest first. 2 halves what scoring costs, and replays twice as many of the candidates. Needs ``every`` ×
            budget candidates, and looks at the slots of the whole memory in each step.

    Raises:
        InvalidInput: If one of them is not one of the above.
    """

    needs_gradient = True

    candidates: int | None = 50
    criterion: Literal["mi1", "mi2"] = "mi1"
    _: KW_ONLY
    layers: Layers = "all"
    virtual_step: VirtualStep = "sgd"
    every: int = 1

    def __post_init__(self) -> None:
        """Check the arguments."""
        check_limit(candidates=self.candidates)
        check_positive(every=self.every)
        check_choice(("mi1", "mi2"), criterion=self.criterion)
        check_choice(get_args(Layers), layers=self.layers)
        check_choice(get_args(VirtualStep), virtual_step=self.virtual_step)

    def __call__(self, memory: Memory, incoming: Batch, gradient: Any, engine: Engine, budget: int) -> Retrieved:
        """Return the candidates with the highest interference; ties go to the lower slot."""
        left = _left(memory, incoming, budget) if self.every > 1 else Retrieved()
        if left.batch is None:
            candidates = _candidates(memory, incoming, self.candidates)  # B_C ~ M
            before, after = engine.losses(candidates, gradient, virtual_step=self.virtual_step, layers=self.layers)
            if self.criterion == "mi2":
                before = _best(memory, candidates, before)
            left = _ranked(candidates, after - before, budget * self.every)
        return left if self.every == 1 else _next(memory, left, budget)  # B_MC


class HighestLoss(Described):
    """Retrieve the samples whose loss is highest now: a control that looks at no step ahead.

    Of C candidates drawn at random, those with the highest s(x) = ℓ(f_θ(x), y), which is reported as interference.
    """

    needs_gradient = False

    def __init__(self, candidates: int | None = 50) -> None:
        """Set C, or None for the whole memory."""
        check_limit(candidates=candidates)
        self.candidates = candidates

    def __call__(self, memory: Memory, incoming: Batch, gradient: Any, engine: Engine, budget: int) -> Retrieved:
        """Return the candidates with the highest loss; ties go to the lower slot."""
        candidates = _candidates(memory, incoming, self.candidates)
        return _ranked(candidates, engine.losses(candidates)[0], budget)


def _candidates(memory: Memory, incoming: Batch, count: int | None) -> Batch:
    if count is None:
        return memory.all(exclude_task=incoming.task)
    return memory.sample(count, exclude_task=incoming.task, ordered=True)


def _ranked(candidates: Batch, scores: Tensor, count: int) -> Retrieved:
    """Return the candidates with the highest scores."""
    scores = torch.nan_to_num(scores, nan=torch.inf, posinf=torch.inf)  # a loss of NaN is the worst
    ranked, order = scores.sort(descending=True, stable=True)
    return Retrieved(candidates.take(order[:count].cpu()), ranked[:count])


def _left(memory: Memory, incoming: Batch, budget: int) -> Retrieved:
    """Return what was scored in an earlier step and is not replayed yet; the memory knows it."""
    slots = memory.slots(exclude_task=incoming.task)
    scores = memory.fact(WAITING, slots, fill=-torch.inf)
    waiting = scores > -torch.inf
    if int(waiting.sum()) < min(budget, 2):  # a lone sample may have no batch statistics: it is dropped
        memory.note(WAITING, slots[waiting], -torch.inf)
        return Retrieved()
    return _ranked(memory.get(slots[waiting]), scores[waiting], len(slots))


def _next(memory: Memory, left: Retrieved, budget: int) -> Retrieved:
    """Return the first ``budget`` of ranked samples, and note the others for the next steps."""
    assert left.batch is not None
    assert left.batch.slots is not None
    assert left.interference is not None
    waiting = left.interference.cpu().clone()
    waiting[:budget] = -torch.inf
    memory.fact(WAITING, left.batch.slots, fill=-torch.inf)
    memory.note(WAITING, left.batch.slots, waiting)
    return Retrieved(left.batch.take(torch.arange(min(budget, len(left.batch)))), left.interference[:budget])


def _best(memory: Memory, candidates: Batch, losses: Tensor) -> Tensor:
    """Return the lowest loss of each candidate so far, and note it."""
    assert candidates.slots is not None
    best = torch.fmin(losses, memory.fact(BEST_LOSS, candidates.slots, fill=torch.inf).to(losses))
    memory.note(BEST_LOSS, candidates.slots, best)
    return torch.minimum(losses, best)  # NaN, which is not noted, counts now
