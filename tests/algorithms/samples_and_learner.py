"""A small learner with batch-norm and dropout, and batches for it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from rehearse import MostInterfered, Replay, ReservoirMemory


def batches(count: int, seed: int = 0, samples: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(samples, 5, generator=generator), torch.randint(0, 3, (samples,), generator=generator)


def learner(**options: object) -> Replay:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    return Replay(model, torch.optim.SGD(model.parameters(), lr=0.5), ReservoirMemory(50), MostInterfered(), **options)
