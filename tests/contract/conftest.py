"""Tiny problems on which every method of lab/methods.py is tested. A new method takes part without being listed."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse import Batch, Learner
from rehearse.lab.builders import Problem
from rehearse.lab.methods import COMMON, METHODS, build
from rehearse.lab.spec import Spec
from rehearse.nets import MLP, GatedMLP
from rehearse.network import prepare_unit

CLASSES, TASKS, SHAPE = 4, 2, (1, 2, 4)
# Options that make a method as small as the problem.
SMALL = {
    "hidden": 16,
    "latent": 4,
    "depth": 1,
    "memories": 2,
    "search_steps": 2,
    "snapshot_every": 4,
    "warmup": 10,
    "channels": 8,
    "autoencoder_budget": 10,
    "autoencoder_epochs": 2,
    "refresh_every": 8,
    "projection": CLASSES,
    "augment": "shift",
}


class Normed(nn.Module):
    """A convolution with batch-norm, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm, self.dropout = nn.BatchNorm2d(4), nn.Dropout(0.3)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.dropout(F.relu(self.norm(self.convolution(x)))).flatten(1))


class SmallResNet(nn.Module):
    """A residual block in channels-last format."""

    channels_last = True

    def __init__(self) -> None:
        super().__init__()
        self.entrance = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.residual = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8))
        self.head = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.entrance(x)
        return self.head(F.relu(x + self.residual(x)).flatten(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLP(8, (16,), CLASSES),
    "gated": lambda: GatedMLP(8, 16, CLASSES, dropout=0.3),
    "normed": Normed,
    "resnet": SmallResNet,
}
GENERATIVE = ("gen", "gen-mir")
ENGINES = ("finetune", "er", "er-mir", "er-mir-head", *GENERATIVE)  # methods that something in fast/ computes

Stream = list[tuple[Tensor, Tensor, int]]
OnStep = Callable[[int, int], None] | None


def network_of(method: str) -> str:
    """Return the network that fast/ knows something about, for this method."""
    return "gated" if method in GENERATIVE else "mlp"


def samples(n: int, seed: int, labels: list[int]) -> tuple[Tensor, Tensor]:
    """Draw from Gaussians in [0, 1], one for each label, well apart."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)[torch.randint(0, len(labels), (n,), generator=generator)]
    centers = 0.2 + 0.6 * (torch.arange(8)[None] % CLASSES == y[:, None]).float()
    return (centers + 0.08 * torch.randn(n, 8, generator=generator)).clamp(0, 1).view(n, *SHAPE), y


def tiny_stream(batches: int = 8, size: int = 5, seed: int = 0) -> Stream:
    """Return two tasks of two classes each."""
    return [
        (*samples(size, 1000 * seed + 100 * task + number, [2 * task, 2 * task + 1]), task)
        for task in range(TASKS)
        for number in range(batches)
    ]


def make(method: str, *, network: str | None = None, seed: int = 0, lr: float = 0.1, updates: int = 1) -> Learner:
    known = METHODS[method]
    common: dict[str, Any] = {
        "capacity": 20,
        "updates": updates,
        "budget": 5,
        "candidates": 8,
        "criterion": "mi2",
        "batchnorm": "published",
        "exclude_current_task": True,
    }
    options = {name: SMALL.get(name, value) for name, value in known.options.items()}
    spec = Spec(
        method=method,
        stream="split-mnist-5k",
        seed=seed,
        lr=lr,
        precision="float32",
        options=options,
        **{name: common[name] if name in known.uses else None for name in COMMON},
    )
    return build(spec, Problem(CLASSES, TASKS, SHAPE, prepare_unit, NETWORKS[network or network_of(method)]))


def run(learner: Learner, stream: Stream, start: int = 0, stop: int | None = None, on_step: OnStep = None) -> None:
    """Observe batches ``start`` to ``stop``, and begin (see `Learner.begin_task`) and end the tasks as a run does."""
    for number, (x, y, task) in list(enumerate(stream))[start:stop]:
        if number == 0 or stream[number - 1][2] != task:
            mine = [batch for batch in stream if batch[2] == task]
            data = Batch(torch.cat([b[0] for b in mine]), torch.cat([b[1] for b in mine]), task)
            learner.begin_task(data, task, on_step)
        learner.observe(x, y, task)
        if number + 1 == len(stream) or stream[number + 1][2] != task:
            learner.end_task()


def trained(method: str, network: str | None = None, updates: int = 1) -> Learner:
    """Return a learner in the middle of its second task."""
    return copy.deepcopy(_trained(method, network or network_of(method), updates))


@cache
def _trained(method: str, network: str, updates: int) -> Learner:
    learner = make(method, network=network, updates=updates)
    run(learner, tiny_stream(), stop=12)
    return learner


def modules(learner: Learner) -> list[nn.Module]:
    """Return every model that the learner trains."""
    return [network.model for network in learner._networks()]


def world() -> dict[str, Any]:
    """Return what belongs to nobody in particular."""
    return {
        "torch": torch.get_rng_state(),
        "numpy": [str(part) if i != 1 else part.tobytes() for i, part in enumerate(np.random.get_state())],  # noqa: NPY002
        "python": hash(random.getstate()),
        "dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


def cases(method: str) -> list[str]:
    """Return the networks to test a method with; "-plain" is without fast/."""
    if method.startswith("iid"):  # the learner of finetune
        return ["mlp"]
    fast = network_of(method)
    return [fast, *([f"{fast}-plain"] if method in ENGINES else []), "normed", "resnet"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Test every method, and where a test asks for a network, with each of its own."""
    if any("method" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")):
        return
    if {"method", "network"} <= set(metafunc.fixturenames):
        pairs = [(method, network) for method in sorted(METHODS) for network in cases(method)]
        metafunc.parametrize(("method", "network"), pairs, indirect=["network"], ids=["-".join(pair) for pair in pairs])
    elif "method" in metafunc.fixturenames:
        metafunc.parametrize("method", sorted(METHODS))


@pytest.fixture
def network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the name of a network, and switch off fast/ if it ends with "-plain"."""
    name, _, plain = str(request.param).partition("-")
    monkeypatch.setenv("REHEARSE_FAST", "0" if plain else "1")
    return name
