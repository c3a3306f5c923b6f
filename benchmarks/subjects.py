"""What is measured: learners of the package, with each fast path on and off, and the textbook steps beside them."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from rehearse.compute import prepare_symmetric, prepare_unit
from rehearse.parts import Parts
from torch import Tensor, nn

import literal
from rehearse.batch import Tree
from rehearse.learners import Replay
from rehearse.memory import ReservoirMemory
from rehearse.nets import MLP, ReducedResNet18
from rehearse.retrieval import MostInterfered, Retrieval, Uniform

ROWS, BUDGET, CANDIDATES, LR, TASKS = 10, 10, 50, 0.05, 5
SHAPES = {"mlp": (1, 28, 28), "resnet": (3, 32, 32)}
Step = Callable[[Tensor, Tensor], Any]


def network(kind: str, classes: int = 10) -> nn.Module:
    torch.manual_seed(0)
    return MLP(classes=classes) if kind == "mlp" else ReducedResNet18(classes)


def images(kind: str, rows: int, classes: int = 10, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Bytes and labels; what they show makes no difference to the time that they take."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (rows, *SHAPES[kind]), dtype=torch.uint8, generator=generator)
    return x, torch.randint(0, classes, (rows,), generator=generator)


class WithoutFactors(Replay):
    """Replay that multiplies out every weight's gradient and every foreseen weight."""

    def _parts(self) -> Parts:
        return dataclasses.replace(super()._parts(), linears=[], chain=None)


def learner(
    kind: str,
    retrieval: Retrieval,
    *,
    capacity: int = 500,
    classes: int = 10,
    factors: bool = True,
    direct_step: bool = True,
    channels_last: bool = True,
) -> Replay:
    """A learner of the package with a full memory of five tasks; the arguments turn its fast paths off."""
    model = network(kind, classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    if not direct_step:
        optimizer.register_step_post_hook(lambda *_: None)
    made = (Replay if factors else WithoutFactors)(
        model, optimizer, ReservoirMemory(capacity), retrieval, budget=BUDGET, prepare=prepare(kind)
    )
    if not channels_last:
        in_default_layout(made)
    x, y = images(kind, min(capacity, 1000), classes, seed=1)
    for start in range(0, capacity, len(x)):
        made.memory.add(x, y, task=torch.arange(start, start + len(x)) % TASKS)
    return made


def in_default_layout(made: Replay) -> None:
    made.computation = dataclasses.replace(made.computation, channels_last=False)
    made.lookahead.computation = made.computation
    made.model.to(memory_format=torch.contiguous_format)


def without_fast_paths(made: Replay) -> None:
    """Turn off, in a learner that exists, what can be turned off."""
    in_default_layout(made)
    made.optimizer.register_step_post_hook(lambda *_: None)
    made.__class__ = WithoutFactors


def prepare(kind: str) -> Callable[[Tree], Tree]:
    return prepare_unit if kind == "mlp" else prepare_symmetric


def in_turn() -> Callable[[], int]:
    """Tasks over and over: a task that never ended would fill the memory, and leave fewer and fewer candidates."""
    turns = itertools.cycle(range(TASKS))
    return lambda: next(turns)


def er(kind: str, **options: Any) -> Step:
    made, task = learner(kind, Uniform(), **options), in_turn()
    return lambda x, y: made.observe(x, y, task=task())


def er_mir(
    kind: str, candidates: int = CANDIDATES, *, layers: Any = "all", compile: bool = False, **options: Any
) -> Step:
    made, task = learner(kind, MostInterfered(candidates, layers=layers, compile=compile), **options), in_turn()
    return lambda x, y: made.observe(x, y, task=task())


def literal_step(kind: str, *, mir: bool, capacity: int = 500) -> Step:
    """The textbook step with its own memory, filled the same way."""
    model = network(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    buffer, reservoir = literal.Buffer.empty(capacity, SHAPES[kind]), literal.Reservoir(capacity)
    x, y = images(kind, capacity, seed=1)
    for start in range(0, capacity, ROWS):
        reservoir.add(buffer, ready(kind, x[start : start + ROWS]), y[start : start + ROWS], start // ROWS % TASKS)
    turn = in_turn()

    def step(x: Tensor, y: Tensor) -> None:
        x, task = ready(kind, x), turn()
        if mir:
            literal.er_mir_step(model, optimizer, buffer, x, y, task, BUDGET, CANDIDATES, LR)
        else:
            literal.er_step(model, optimizer, buffer, x, y, task, BUDGET)
        reservoir.add(buffer, x, y, task)

    return step


def ready(kind: str, x: Tensor) -> Tensor:
    prepared: Tensor = prepare(kind)(x)
    return prepared


# ---------------------------------------------------------------------------------------------------- the bound


def matrix_products(*, mir: bool) -> Step:
    """The matrix products of a step of the MLP, as few and as large as the mathematics allows, and nothing else."""
    widths = [(784, 400), (400, 400), (400, 10)]
    weights = [torch.randn(out, into) for into, out in widths]
    few, many = ([torch.randn(rows, into) for into, _ in widths] for rows in (ROWS, CANDIDATES))
    deltas = [torch.randn(ROWS, out) for _, out in widths]
    sums = [(torch.randn(2 * ROWS, out), torch.randn(2 * ROWS, into)) for into, out in widths]

    def step(x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            for _ in range(2):  # the incoming and the recalled batch: forward, and back to the hidden layers
                for inputs, weight in zip(few, weights, strict=True):
                    F.linear(inputs, weight)
                for delta, weight in zip(deltas[1:], weights[1:], strict=True):
                    delta @ weight
            for weight, (delta, inputs) in zip(weights, sums, strict=True):
                weight.addmm_(delta.t(), inputs, alpha=1e-9)
            if mir:
                for inputs, weight in zip(many, weights, strict=True):
                    F.linear(inputs, weight)
                for inputs, weight in zip(many[1:], weights[1:], strict=True):
                    F.linear(inputs, weight)
                for inputs, incoming, delta in zip(many[:2], few[:2], deltas[:2], strict=True):
                    (inputs @ incoming.t()) @ delta

    return step


# ---------------------------------------------------------------------------------------------------------- phases


def phases(kind: str, retrieval: Retrieval, batches: list[tuple[Tensor, Tensor]]) -> dict[str, float]:
    """The share of a step's time that each of its parts takes."""
    made = learner(kind, retrieval)
    spent: dict[str, float] = {}

    def watch(owner: Any, name: str, phase: str, replayed: str | None = None) -> None:
        function = getattr(owner, name)

        def watched(*arguments: Any, **keywords: Any) -> Any:
            started = time.thread_time()
            try:
                return function(*arguments, **keywords)
            finally:
                now = replayed if replayed is not None and keywords["recalled"] else phase
                spent[now] = spent.get(now, 0.0) + time.thread_time() - started

        setattr(owner, name, watched)

    watch(made, "_passed", "incoming gradient", "replay gradient")
    watch(made.memory, "sample", "candidates")
    watch(made.lookahead, "_moved", "look-ahead")
    watch(made.lookahead, "losses", "scoring")
    watch(made, "_apply", "optimiser")
    watch(made.memory, "keep", "memory")
    watch(made, "observe", "step")
    for x, y in batches:
        made.observe(x, y, task=5)
    spent["scoring"] = spent.get("scoring", 0.0) - spent.get("look-ahead", 0.0)
    whole = spent.pop("step")
    spent["everything else"] = whole - sum(spent.values())
    return {name: value / whole for name, value in spent.items() if value > 0}
