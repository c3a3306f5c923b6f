"""What a retrieval is.

A retrieval is an object that is called ``(memory, incoming, gradient, engine, budget)`` and returns the samples to
replay with their interference, or ``(None, None)``.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from ..batch import Batch
from ..engine import Engine
from ..memory import Memory


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
