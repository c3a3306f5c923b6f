"""Tiny problems on which every method of methods.py is tried. A new method is enrolled by existing."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse import Batch, Learner
from rehearse.compute import prepare_unit
from rehearse.lab.builders import Problem
from rehearse.lab.methods import COMMON, METHODS, build
from rehearse.lab.spec import Spec

CLASSES, TASKS, SHAPE = 4, 2, (1, 2, 4)
# Options under which a method that has them is as small as the problem.
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
}


class Plain(nn.Module):
    """8–16–4."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout))
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Normed(nn.Module):
    """A convolution with batch-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.convolution(x))).flatten(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "plain": Plain,
    "dropout": lambda: Plain(0.3),
    "batchnorm": Normed,
}

Stream = list[tuple[Tensor, Tensor, int]]


def rows(n: int, seed: int, labels: list[int]) -> tuple[Tensor, Tensor]:
    """Gaussians in [0, 1], one for each label, well apart."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)[torch.randint(0, len(labels), (n,), generator=generator)]
    centres = 0.2 + 0.6 * (torch.arange(8)[None] % CLASSES == y[:, None]).float()
    return (centres + 0.08 * torch.randn(n, 8, generator=generator)).clamp(0, 1).view(n, *SHAPE), y


def tiny_stream(batches: int = 8, size: int = 5, seed: int = 0) -> Stream:
    """Two tasks of two classes each."""
    return [
        (*rows(size, 1000 * seed + 100 * task + number, [2 * task, 2 * task + 1]), task)
        for task in range(TASKS)
        for number in range(batches)
    ]


def make(method: str, *, network: str = "plain", seed: int = 0, lr: float = 0.1, updates: int = 1) -> Learner:
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
    return build(spec, Problem(CLASSES, TASKS, SHAPE, prepare_unit, NETWORKS[network]))


def run(learner: Learner, stream: Stream, start: int = 0, stop: int | None = None) -> None:
    """Batches ``start`` to ``stop`` with all that a run calls: the tasks' beginnings and ends."""
    for number, (x, y, task) in list(enumerate(stream))[start:stop]:
        if number == 0 or stream[number - 1][2] != task:
            mine = [batch for batch in stream if batch[2] == task]
            learner.begin_task(Batch(torch.cat([b[0] for b in mine]), torch.cat([b[1] for b in mine]), task), task)
        learner.observe(x, y, task)
        if number + 1 == len(stream) or stream[number + 1][2] != task:
            learner.end_task()


def modules(learner: Learner) -> list[nn.Module]:
    """Every network that the learner trains, held by itself or by a part of it; frozen copies are its own affair."""
    found: dict[int, nn.Module] = {}
    seen: set[int] = set()

    def look(part: Any) -> None:
        if id(part) in seen:
            return
        seen.add(id(part))
        if isinstance(part, nn.Module):
            if any(parameter.requires_grad for parameter in part.parameters()):
                found[id(part)] = part
        elif type(part).__module__.startswith("rehearse."):
            for value in getattr(part, "__dict__", {}).values():
                look(value)

    look(learner)
    return list(found.values())


def world() -> dict[str, Any]:
    """What belongs to nobody in particular."""
    return {
        "torch": torch.get_rng_state(),
        "numpy": str(np.random.get_state()),  # noqa: NPY002
        "python": random.getstate(),
        "dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


@pytest.fixture(params=sorted(METHODS))
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["dropout", "batchnorm"])
def network(request: pytest.FixtureRequest) -> str:
    return str(request.param)
