"""A small `CodeReplay`, two tasks of images for it, and its frozen networks as modules."""

from __future__ import annotations

from typing import Any

import torch
from generative_learner import restored as restored
from torch import Tensor, nn

from rehearse import Batch, Memory, ReservoirMemory
from rehearse.latent import LatentSearch
from rehearse.learners import CodeReplay, CodeSearch
from rehearse.nets import ConvAutoencoder

SHAPE, LR = (1, 4, 4), 0.1


class Tiny(nn.Module):
    """A classifier with batch-norm."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def learner(
    classifier: nn.Module | None = None,
    autoencoder: nn.Module | None = None,
    *,
    seed: int = 0,
    capacity: int = 30,
    memory: Memory | None = None,
    **options: Any,
) -> CodeReplay:
    torch.manual_seed(7)
    classifier = classifier or Tiny()
    autoencoder = autoencoder or ConvAutoencoder(SHAPE, channels=3, depth=1)
    options = {"autoencoder_epochs": 2, "autoencoder_batch": 5, "budget": 20, "precision": "float32", **options}
    return CodeReplay(
        classifier,
        torch.optim.SGD(classifier.parameters(), lr=LR),
        autoencoder,
        torch.optim.Adam(autoencoder.parameters(), lr=0.01),
        ReservoirMemory(capacity, seed=seed) if memory is None else memory,
        seed=seed,
        **options,
    )


def some_search(**options: Any) -> CodeSearch:
    return CodeSearch(LatentSearch(1, 0.5), **options)


def images(n: int, seed: int, labels: tuple[int, int]) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.tensor(labels)[torch.randint(0, 2, (n,), generator=generator)]
    x = torch.randn(n, *SHAPE, generator=generator) / 3 + (y.view(-1, 1, 1, 1) - 1.5) / 3
    return x.clamp(-1, 1), y


TASKS = [images(20, task, (2 * task, 2 * task + 1)) for task in range(2)]


def run(made: CodeReplay, tasks: int = 2, batches: int = 4) -> list[Any]:
    steps = []
    for task in range(tasks):
        x, y = TASKS[task]
        made.begin_task(Batch(x, y, task), task)
        steps += [made.observe(x[i : i + 5], y[i : i + 5], task) for i in range(0, 5 * batches, 5)]
        made.end_task()
    return steps


def coder(made: CodeReplay) -> nn.Module:
    """The autoencoder that reads the codes now, in eval mode."""
    return restored(made.autoencoder, made.codec.tensors)


def previous(made: CodeReplay) -> nn.Module:
    """The classifier of the last snapshot."""
    assert made.previous is not None
    return restored(made.model, made.previous)
