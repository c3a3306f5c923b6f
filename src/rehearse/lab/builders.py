"""From a spec to a learner: how each method that learns from stored rows is put together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..batch import Tree
from ..errors import InvalidInput
from ..learners import AGEM, GEM, Finetune, ICaRL, Learner, Replay
from ..losses import AsymmetricCrossEntropy, DarkExperience
from ..memory import ExemplarMemory, ReservoirMemory, TaskRingMemory
from ..random import seed_sequence
from ..retrieval import MostInterfered, Retrieval, Uniform
from .batchnorm import Published
from .draws import Draws
from .spec import Spec


@dataclass(frozen=True)
class Problem:
    """What a learner is told of the stream it is built for, and the network it is to use."""

    classes: int
    tasks: int | None
    input_shape: tuple[int, ...]
    prepare: Callable[[Tree], Tree]
    network: Callable[[], nn.Module]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


Build = Callable[[Spec, Problem], Learner]


def network_and_optimizer(spec: Spec, problem: Problem) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The network with its weights drawn from the run's seed, and plain SGD as in the paper."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed_sequence(spec.seed, "init").generate_state(1)[0]))
        model = problem.network().to(problem.device)
    return model, torch.optim.SGD(model.parameters(), lr=spec.lr)


def settings(spec: Spec, problem: Problem) -> dict[str, Any]:
    """The arguments that all of these learners have."""
    return {
        "updates": spec.updates or 1,
        "prepare": problem.prepare,
        "precision": spec.precision,
        "seed": spec.seed,
    }


def finetune(spec: Spec, problem: Problem) -> Learner:
    return Finetune(*network_and_optimizer(spec, problem), **settings(spec, problem))


# --------------------------------------------------------------------------------------------- replay, and its parts


def replay(
    retrieval: Callable[[Spec], Retrieval], loss: Callable[[Spec], Any] = lambda _: None, *, all_tasks: bool = False
) -> Build:
    """A builder of `Replay` with this retrieval and loss: what most methods are.

    ``all_tasks`` is for methods that are defined without tasks, and recall memories of the current one too.
    """

    def build(spec: Spec, problem: Problem) -> Learner:
        return Replay(
            *network_and_optimizer(spec, problem),
            ReservoirMemory(spec.capacity or 1, seed=spec.seed),
            retrieval(spec),
            loss=loss(spec),
            budget=spec.budget or 10,
            exclude_current_task=spec.exclude_current_task is not False and not all_tasks,
            batchnorm=Published() if spec.batchnorm == "published" else spec.batchnorm or "clean",
            **settings(spec, problem),
        )

    return build


def uniform(spec: Spec) -> Retrieval:
    return Uniform(spec.capacity if spec.candidates == "all" else spec.candidates)  # type: ignore[arg-type]


def most_interfered(spec: Spec) -> Retrieval:
    return MostInterfered(candidates(spec), spec.criterion or "mi1")  # type: ignore[arg-type]


def most_interfered_by_head(spec: Spec) -> Retrieval:
    return MostInterfered(candidates(spec), spec.criterion or "mi1", layers="head")  # type: ignore[arg-type]


def candidates(spec: Spec) -> int | None:
    return None if spec.candidates == "all" else int(spec.candidates or 50)


def asymmetric(_: Spec) -> AsymmetricCrossEntropy:
    return AsymmetricCrossEntropy()


def dark(spec: Spec) -> DarkExperience:
    return DarkExperience(alpha=spec.options["alpha"], beta=spec.options["beta"])  # type: ignore[arg-type]


def in_draws(retrieval: Callable[[Spec], Retrieval]) -> Callable[[Spec], Retrieval]:
    """Two draws with the option ``draws=2``, one for each term of DER++, as published."""

    def build(spec: Spec) -> Retrieval:
        draws = spec.options["draws"]
        if draws not in (1, 2) or isinstance(draws, bool):
            raise InvalidInput(f"draws is {draws!r}; it must be 1 (one recalled batch for both terms) or 2")
        return retrieval(spec) if draws == 1 else Draws(retrieval(spec), 2)

    return build


# ------------------------------------------------------------------------------------------------ the other learners


def gem(spec: Spec, problem: Problem) -> Learner:
    memory = TaskRingMemory(spec.capacity or 1, tasks=problem.tasks, seed=spec.seed)
    margin: Any = spec.options["margin"]
    return GEM(*network_and_optimizer(spec, problem), memory, margin=margin, **settings(spec, problem))


def agem(spec: Spec, problem: Problem) -> Learner:
    memory = TaskRingMemory(spec.capacity or 1, tasks=problem.tasks, seed=spec.seed)
    return AGEM(*network_and_optimizer(spec, problem), memory, budget=spec.budget or 256, **settings(spec, problem))


def icarl(spec: Spec, problem: Problem) -> Learner:
    keep: Any = spec.options["keep"]
    return ICaRL(
        *network_and_optimizer(spec, problem),
        ExemplarMemory(spec.capacity or 1, seed=spec.seed),
        budget=spec.budget or 10,
        keep=keep,
        **settings(spec, problem),
    )
