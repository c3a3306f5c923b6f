"""Small learners of every kind, on the way through a stream, for tests of interrupts and threads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from conftest import METHODS, SmallResNet, make, tiny_stream, trained
from rehearse import (
    Batch,
    ClassBalancedMemory,
    HighestLoss,
    Learner,
    Memory,
    MostInterfered,
    ReservoirMemory,
    RingMemory,
    Uniform,
)
from rehearse.lab.batchnorm import Published
from rehearse.latent import LatentSearch
from rehearse.learners import (
    AGEM,
    GEM,
    CodeReplay,
    CodeSearch,
    Coefficients,
    Finetune,
    GenerativeReplay,
    ICaRL,
    LatentRetrieval,
    Replay,
)
from rehearse.learners.gdumb import GDumb
from rehearse.losses import AsymmetricCrossEntropy, AveragedDistillation, DarkExperience
from rehearse.memory import ExemplarMemory, TaskRingMemory
from rehearse.nets import MLP, VAE, ConvAutoencoder, GatedMLP
from rehearse.transforms import Flip, RunningScaler

CLASSES, FEATURES = 4, 8


class Case(NamedTuple):
    """A learner, and the batch that it observes next."""

    learner: Learner
    x: Tensor
    y: Tensor
    task: int | None


Setting = Callable[[Path], Case]

MODELS: dict[str, Callable[[], nn.Module]] = {
    "chain": lambda: MLP(FEATURES, (6,), CLASSES),
    "dropout": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(FEATURES, 6), nn.ReLU(), nn.Dropout(0.4), nn.Linear(6, CLASSES)
    ),
    "norm": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(FEATURES, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES)
    ),
    "resnet": SmallResNet,
    "gated": lambda: GatedMLP(FEATURES, 6, CLASSES, dropout=0.3),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
}
RETRIEVALS: dict[str, Callable[[], Any]] = {
    "uniform": Uniform,
    "mi1": lambda: MostInterfered(6),
    "mi2": lambda: MostInterfered(6, "mi2"),
    "head": lambda: MostInterfered(6, layers="head"),
    "optimizer": lambda: MostInterfered(6, virtual_step="optimizer"),
}
ONCE_MORE: dict[str, Callable[[], Any]] = {
    "mi1, every second": lambda: MostInterfered(6, every=2),
    "loss": lambda: HighestLoss(6),
}
LOSSES: dict[str, Callable[[], Any]] = {"ce": lambda: None, "ace": AsymmetricCrossEntropy, "der": DarkExperience}
POLICIES: dict[str, Callable[[], Any]] = {
    "clean": lambda: "clean",
    "joint": lambda: "joint",
    "auto": lambda: "auto",
    "published": Published,
}


def batch(number: int, size: int = 4) -> tuple[Tensor, Tensor, int]:
    """Return the batch of this number: tasks of two classes and three batches each."""
    generator, task = torch.Generator().manual_seed(number), number // 3 % 2
    y = 2 * task + torch.randint(0, 2, (size,), generator=generator)
    return torch.rand(size, 1, 2, 4, generator=generator), y, task


def warm(learner: Learner, batches: int = 4, *, tasks: bool = True, prepared: bool = False) -> Case:
    """Let a learner observe some batches and return it with the next."""
    torch.manual_seed(99)
    for number in range(batches):
        x, y, task = batch(number)
        if prepared and number % 3 == 0:
            learner.begin_task(Batch(x, y, task), task)
        learner.observe(x, y, task if tasks else None)
    x, y, task = batch(batches)
    return Case(learner, x, y, task if tasks else None)


def build(model: str, optimizer: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    made = MODELS[model]()
    return made, OPTIMIZERS[optimizer](made.parameters())


def replay(
    retrieval: str = "mi1",
    loss: str = "ce",
    optimizer: str = "sgd",
    updates: int = 1,
    model: str = "chain",
    policy: str = "auto",
    memory: Callable[[Path], Memory] = lambda _: ReservoirMemory(10),
    batches: int = 4,
    scaled: bool = False,
    **options: Any,
) -> Setting:
    def make(folder: Path) -> Case:
        learner = Replay(
            *build(model, optimizer),
            memory(folder),
            (RETRIEVALS | ONCE_MORE)[retrieval](),
            loss=(LOSSES | {"distilled": AveragedDistillation})[loss](),
            budget=3,
            updates=updates,
            batchnorm=POLICIES[policy](),
            prepare=RunningScaler() if scaled else None,
            **options,
        )
        return warm(learner, batches)

    return make


def projected(kind: Any, optimizer: str, updates: int, model: str) -> Setting:
    def make(_: Path) -> Case:
        memory = () if kind is Finetune else (TaskRingMemory(9),)
        return warm(kind(*build(model, optimizer), *memory, updates=updates), 5)

    return make


def icarl(keep: Any, optimizer: str, updates: int, model: str, batches: int) -> Setting:
    def make(_: Path) -> Case:
        learner = ICaRL(*build(model, optimizer), ExemplarMemory(9), keep=keep, budget=3, updates=updates)
        return warm(learner, batches)

    return make


def gdumb(optimizer: str, model: str, batches: int) -> Setting:
    def make(_: Path) -> Case:
        memory = ClassBalancedMemory(7)
        return warm(GDumb(*build(model, optimizer), memory, epochs=1, batch=4), batches)

    return make


def generative(retrieval: str, optimizer: str, updates: int, *, model: str = "gated", **options: Any) -> Setting:
    def search(gradient: Any, reconstruction: float) -> LatentRetrieval:
        terms = Coefficients(kl=1.0, entropy=0.5, diversity=1.0, reconstruction=reconstruction)
        return LatentRetrieval(LatentSearch(1, 0.1), terms, gradient=gradient)

    def make(_: Path) -> Case:
        classifier, own = build(model, optimizer)
        generator = VAE((1, 2, 4), hidden=5, latent=2, dropout=0.2)
        if retrieval != "gen":
            gradient = "stale" if retrieval == "stale" else "fresh"
            options["classifier_retrieval"] = search(gradient, 0.0)
            options["generator_retrieval"] = search(gradient, 0.5)
        learner = GenerativeReplay(
            classifier, own, generator, OPTIMIZERS[optimizer](generator.parameters()),
            memories=1, updates=updates, **options,
        )  # fmt: skip
        return warm(learner)

    return make


def codes(
    searched: bool,
    prepared: bool,
    optimizer: str = "adam",
    updates: int = 1,
    batches: int = 5,
    model: str = "chain",
    memory: Callable[[Path], Memory] = lambda _: ReservoirMemory(10),
    tasks: bool = True,
    **options: Any,
) -> Setting:
    def make(folder: Path) -> Case:
        classifier, own = build(model, optimizer)
        autoencoder = ConvAutoencoder((1, 2, 4), channels=2, depth=1)
        search = CodeSearch(LatentSearch(1, 1.0), candidates=6) if searched else None
        learner = CodeReplay(
            classifier, own, autoencoder, OPTIMIZERS[optimizer](autoencoder.parameters()), memory(folder),
            search=search, budget=3, updates=updates, autoencoder_epochs=1, autoencoder_budget=3, autoencoder_batch=4,
            snapshot_every=2, **options,
        )  # fmt: skip
        return warm(learner, batches, prepared=prepared, tasks=tasks)

    return make


def method(name: str) -> Setting:
    """Return a method of the command line in the middle of its second task."""

    def make(_: Path) -> Case:
        return Case(trained(name, "normed"), *tiny_stream()[12])

    return make


BY_HAND = {Replay, Finetune, GEM, AGEM, ICaRL, GenerativeReplay, CodeReplay}
BY_THEMSELVES = {f"method {name}": method(name) for name in METHODS if type(make(name)) not in BY_HAND}
"""Methods of other kinds, so that a new one is tested without being listed."""


MEMORIES: dict[str, Callable[[Path], Memory]] = {
    "ring": lambda _: RingMemory(7),
    "balanced": lambda _: ClassBalancedMemory(7),
    "balanced, not full": lambda _: ClassBalancedMemory(40),
    "mapped": lambda folder: ReservoirMemory(10, path=folder / "samples"),
    "mapped balanced": lambda folder: ClassBalancedMemory(7, path=folder / "samples"),
}


def _settings() -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for names in product(RETRIEVALS, LOSSES, OPTIMIZERS, (1, 2), ("chain", "dropout")):
        found[f"replay {' '.join(map(str, names))}"] = replay(*names)
    for names in product(RETRIEVALS, LOSSES, OPTIMIZERS, (1, 2), ("norm",), POLICIES):
        found[f"replay {' '.join(map(str, names))}"] = replay(*names)
    for names in product(("uniform", "mi2"), ("ce",), ("sgd", "adam"), (1,), ("resnet",), ("clean", "published")):
        found[f"replay {' '.join(map(str, names))}"] = replay(*names)
    found["replay, bfloat16"] = replay("mi2", model="norm", precision="bfloat16")
    found["replay, clipped"] = replay("mi2", clip=0.1, replay_weight=0.5)
    found["replay, scaled"] = replay("mi2", optimizer="adam", scaled=True)
    found["replay, first batch"] = replay("mi2", batches=0)
    strong: dict[str, Any] = {"loss": "distilled", "augment": Flip(), "average": 0.1, "predict_by": "nearest-mean"}
    for names in product(("uniform", "mi2", "mi1, every second", "loss"), OPTIMIZERS, (1, 2), ("chain", "norm")):
        retrieval, optimizer, updates, model = names
        for policy in ("clean", "joint"):
            found[f"strong replay {' '.join(map(str, names))} {policy}"] = replay(
                retrieval, optimizer=optimizer, updates=updates, model=model, policy=policy, **strong
            )
    for name, memory in MEMORIES.items():
        for retrieval, batches in (("mi2", 4), ("uniform", 5), ("mi2", 0)):
            found[f"replay {retrieval}, {name} memory, batch {batches}"] = replay(
                retrieval, loss="der", memory=memory, batches=batches
            )
    for kind, *names in product((Finetune, GEM, AGEM), OPTIMIZERS, (1, 2), ("chain", "dropout", "norm")):
        found[f"{kind.__name__} {' '.join(map(str, names))}"] = projected(kind, *names)
    for keep, *names in product(("memory", "task"), OPTIMIZERS, (1, 2), ("chain", "norm"), (3, 4)):
        found[f"ICaRL {keep} {' '.join(map(str, names))}"] = icarl(keep, *names)
    for names in product(("sgd", "adam"), ("chain", "norm"), (2, 4)):
        found[f"GDumb {' '.join(map(str, names))}"] = gdumb(*names)
    for retrieval, *names in product(("gen", "mir", "stale"), ("sgd", "adam"), (1, 2)):
        found[f"GenerativeReplay {retrieval} {' '.join(map(str, names))}"] = generative(retrieval, *names)
    found["GenerativeReplay mir, new retrievals"] = generative("mir", "sgd", 2, reuse=False)
    found["GenerativeReplay mir, norm"] = generative("mir", "sgd", 1, model="norm")
    for names in product((False, True), (False, True), ("sgd", "adam"), (1, 2)):
        found[f"CodeReplay {' '.join(map(str, names))}"] = codes(*names)
    for batches in (0, 1, 3):
        found[f"CodeReplay, batch {batches}"] = codes(True, False, batches=batches)
    found["CodeReplay, bytes"] = codes(True, False, batches=3, codes="uint8")
    found["CodeReplay, no tasks"] = codes(True, False, batches=4, tasks=False)
    found["CodeReplay, norm"] = codes(True, True, "adam", 2, model="norm")
    found["CodeReplay, mapped memory"] = codes(True, False, batches=3, memory=MEMORIES["mapped"])
    found["CodeReplay, mapped memory, first batch"] = codes(True, False, batches=0, memory=MEMORIES["mapped"])
    return found | BY_THEMSELVES


SETTINGS = _settings()
