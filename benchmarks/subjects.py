"""What is timed: steps of the library's learners, and of the reference implementations beside them.

A subject is a function without arguments that takes one step, or a `Timed`. Inputs are random bytes: what they show
makes no difference to the time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import literal
import literal_generative
import literal_hybrid
from elsewhere import Step, Timed
from rehearse import Batch, MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.nets import MLP, ConvAutoencoder, ReducedResNet18

try:
    from rehearse.lab.methods import Problem, build, prepare_for, resolve
    from rehearse.lab.networks import make_network
except ImportError:  # a version before decision 0047, for versions.py
    from rehearse.methods import Problem, build, prepare_for, resolve

    from rehearse.nets import make_network

SAMPLES, BUDGET, CANDIDATES, LR, TASKS, CLASSES = 10, 10, 50, 0.05, 5, 10
SHAPES = {"mlp": (1, 28, 28), "resnet": (3, 32, 32)}
PREPARE = {"mlp": prepare_for("unit"), "resnet": prepare_for("symmetric")}
CODES = 1000


def images(kind: str, samples: int, classes: int = CLASSES, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return bytes and labels."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (samples, *SHAPES[kind]), dtype=torch.uint8, generator=generator)
    return x, torch.randint(0, classes, (samples,), generator=generator)


def batches(kind: str, classes: int = CLASSES) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield incoming batches without end: the same twenty in turn."""
    x, y = images(kind, 20 * SAMPLES, classes, seed=2)
    return itertools.cycle(zip(x.split(SAMPLES), y.split(SAMPLES), strict=True))


def network(kind: str, classes: int = CLASSES) -> nn.Module:
    """Return the MLP 784–400–400 or the reduced ResNet-18."""
    torch.manual_seed(0)
    return MLP(classes=classes) if kind == "mlp" else ReducedResNet18(classes)


@contextlib.contextmanager
def without_fast() -> Iterator[None]:
    """Make learners of codes or of stored samples that do without the folder ``fast/``."""
    os.environ["REHEARSE_FAST"] = "0"
    try:
        yield
    finally:
        del os.environ["REHEARSE_FAST"]


# ------------------------------------------------------------------------------------------------- ER and ER-MIR


def replay(
    kind: str,
    *,
    mir: bool,
    candidates: int = CANDIDATES,
    layers: Any = "all",
    capacity: int = 500,
    classes: int = CLASSES,
    precision: str = "auto",
    channels_last: bool = True,
) -> Step:
    """Return a step of ER or ER-MIR with a full memory of five tasks.

    Incoming batches are of these tasks in turn: a task that never ended would fill the memory, and leave fewer and
    fewer candidates.
    """
    model = network(kind, classes)
    if not channels_last:
        model.channels_last = False  # type: ignore[assignment]
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    retrieval = MostInterfered(candidates, layers=layers) if mir else Uniform()
    memory = ReservoirMemory(capacity)
    learner = Replay(
        model, optimizer, memory, retrieval, budget=BUDGET, prepare=PREPARE[kind], precision=precision
    )  # fmt: skip
    x, y = images(kind, min(capacity, 1000), classes, seed=1)
    for start in range(0, capacity, len(x)):
        memory.add(x, y, task=torch.arange(start, start + len(x)) % TASKS)
    incoming, tasks = batches(kind, classes), itertools.cycle(range(TASKS))
    return lambda: learner.observe(*next(incoming), task=next(tasks))


def reference_replay(kind: str, *, mir: bool, capacity: int = 500) -> Step:
    """Return the reference step of ER or ER-MIR, with a memory of its own that is filled the same way."""
    model, prepare = network(kind), PREPARE[kind]
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    buffer, reservoir = literal.Buffer.empty(capacity, SHAPES[kind]), literal.Reservoir(capacity)
    x, y = images(kind, capacity, seed=1)
    for start in range(0, capacity, SAMPLES):
        some = slice(start, start + SAMPLES)
        reservoir.add(buffer, prepare(x[some]), y[some], start // SAMPLES % TASKS)
    incoming, tasks = batches(kind), itertools.cycle(range(TASKS))

    def step() -> None:
        (raw, labels), task = next(incoming), next(tasks)
        inputs = prepare(raw)
        if mir:
            literal.er_mir_step(model, optimizer, buffer, inputs, labels, task, BUDGET, CANDIDATES, LR)
        else:
            literal.er_step(model, optimizer, buffer, inputs, labels, task, BUDGET)
        reservoir.add(buffer, inputs, labels, task)

    return step


def matrix_products(*, mir: bool) -> Step:
    """Return the matrix products of a step of the MLP, as few and as large as the mathematics allows, and no more."""
    widths = [(784, 400), (400, 400), (400, 10)]
    weights = [torch.randn(out, into) for into, out in widths]
    few, many = ([torch.randn(samples, into) for into, _ in widths] for samples in (SAMPLES, CANDIDATES))
    deltas = [torch.randn(SAMPLES, out) for _, out in widths]
    sums = [(torch.randn(2 * SAMPLES, out), torch.randn(2 * SAMPLES, into)) for into, out in widths]

    @torch.no_grad()
    def step() -> None:
        for _ in range(2):  # the incoming and the replayed batch: forward, and back to the hidden layers
            for inputs, weight in zip(few, weights, strict=True):
                F.linear(inputs, weight)
            for delta, weight in zip(deltas[1:], weights[1:], strict=True):
                delta @ weight
        for weight, (delta, inputs) in zip(weights, sums, strict=True):
            weight.addmm_(delta.t(), inputs, alpha=1e-9)
        if mir:
            for inputs, weight in [*zip(many, weights, strict=True), *zip(many[1:], weights[1:], strict=True)]:
                F.linear(inputs, weight)
            for inputs, incoming, delta in zip(many[:2], few[:2], deltas[:2], strict=True):
                (inputs @ incoming.t()) @ delta

    return step


def peak_memory(maker: Callable[..., Step], *arguments: Any, **keywords: Any) -> int:
    """Return by how many bytes this process grows, at most, in five steps; Linux only, and once in a process."""
    Path("/proc/self/clear_refs").write_text("5", "ascii")  # lets the peak be what it has now
    start = _resident("VmRSS")
    step = maker(*arguments, **keywords)
    for _ in range(5):
        step()
    return _resident("VmHWM") - start


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


# ------------------------------------------------------------------------------------------- methods by their names


def learner_of(method: str, stream: str, kind: str, layer: dict[str, Any]) -> Any:
    """Return the learner of a method with the published settings of a stream, and a layer above them."""
    spec = resolve(method, stream, layer)
    make = lambda: make_network(spec.network, classes=CLASSES, input_shape=SHAPES[kind])  # noqa: E731
    return build(spec, Problem(CLASSES, TASKS, SHAPES[kind], PREPARE[kind], make))


def generative(method: str, layer: dict[str, Any], *, replaying: bool) -> Step:
    """Return a step of GEN or GEN-MIR at the settings of Split MNIST, in the first task or in the second."""
    learner, incoming = learner_of(method, "split-mnist", "mlp", layer), batches("mlp")
    if replaying:
        learner.observe(*next(incoming), task=0)
        learner.end_task()
    return lambda: learner.observe(*next(incoming), task=int(replaying))


def reference_generative(name: str, *, replaying: bool) -> Step:
    """Return the reference step of GEN or GEN-MIR, in the first task or in the second."""
    learner = literal_generative.Literal(literal_generative.SETTINGS[name])
    incoming = ((PREPARE["mlp"](x), y) for x, y in batches("mlp"))
    if replaying:
        learner(*next(incoming))
        learner.end_task()
    return lambda: learner(*next(incoming))


def coded(method: str, precision: str, *, full: bool, codes: int = CODES) -> Any:
    """Return a learner of AE or AE-MIR at the settings of Split CIFAR-10 in its first task, or in its second."""
    layer = {"capacity": codes, "precision": precision, "options": {"autoencoder_epochs": 1}}
    learner = learner_of(method, "split-cifar10", "resnet", layer)
    if full:
        x, y = images("resnet", codes)
        learner.begin_task(Batch(x[:SAMPLES], y[:SAMPLES], 0), 0)
        learner.observe(x[:SAMPLES], y[:SAMPLES], 0)
        learner.remember([(x, y, 0)])
        learner.end_task()
    return learner


def coded_classifier(method: str, precision: str, **more: Any) -> Step:
    """Return a step of the classifier of AE or AE-MIR."""
    learner, incoming, task = coded(method, precision, **more), batches("resnet"), int(more["full"])
    learner.begin_task(Batch(*next(incoming), task), task)
    return lambda: learner.observe(*next(incoming), task)


class CodedAutoencoder(Timed):
    """Steps of the autoencoder of AE or AE-MIR, without what is done once in an epoch."""

    def __init__(self, method: str, precision: str, **more: Any) -> None:
        """Make a learner; see `coded`."""
        self.learner, self.task = coded(method, precision, **more), int(more["full"])
        self.data = Batch(*images("resnet", 9750), self.task)

    def seconds(self, steps: int) -> float:
        """Resume the preparation of the task for so many steps, after a first one that reads the codes."""
        stamps: list[float] = []

        def on_step(done: int, of: int) -> None:
            stamps.append(time.thread_time())
            if len(stamps) > steps:
                raise _Enough

        try:
            self.learner.begin_task(self.data, self.task, on_step)
        except _Enough:
            return stamps[-1] - stamps[0]
        raise ValueError(f"{steps} steps are more than the preparation has left")


class _Enough(Exception):
    """So many steps were taken."""


def reference_coded(step: str, *, search: bool, full: bool, codes: int = CODES) -> Step:
    """Return a step of the reference implementation of AE or AE-MIR: ``training_epoch_step`` or ``last_epoch_step``."""
    torch.manual_seed(0)
    model, autoencoder = ReducedResNet18(CLASSES), ConvAutoencoder(SHAPES["resnet"])
    with torch.no_grad():
        stored = autoencoder.encode(torch.rand(codes, *SHAPES["resnet"]) * 2 - 1)
    labels, tasks = images("resnet", codes, seed=1)[1], torch.zeros(codes, dtype=torch.long)
    learner = literal_hybrid.LiteralHybrid(model, autoencoder, stored, labels, tasks, search)
    incoming = ((PREPARE["resnet"](x), y) for x, y in batches("resnet"))
    return lambda: getattr(learner, step)(*next(incoming), int(full))


# --------------------------------------------------------------------------------------------------------- prediction


def predict(kind: str, *, bare: bool) -> Step:
    """Return the prediction of one sample, by a learner or by the bare model."""
    torch.manual_seed(0)
    model = MLP() if kind == "mlp" else nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 10))
    x = torch.rand(1, *SHAPES["mlp"]) if kind == "mlp" else torch.rand(1, 32)
    if bare:
        model.eval()
        return torch.no_grad()(lambda: model(x))
    learner = Replay(model, torch.optim.SGD(model.parameters(), lr=LR), ReservoirMemory(500))
    learner.observe(x.repeat(SAMPLES, *[1] * (x.ndim - 1)), torch.arange(SAMPLES) % CLASSES)
    return lambda: learner.predict(x)
