"""The learners and streams of these tests."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rehearse import Memory, MostInterfered, Replay, ReservoirMemory


def network(batchnorm: bool = True, dropout: float = 0.2) -> nn.Sequential:
    norm = [nn.BatchNorm1d(12)] if batchnorm else []
    return nn.Sequential(nn.Linear(6, 12), *norm, nn.ReLU(), nn.Dropout(dropout), nn.Linear(12, 4))


def learner(seed: int = 0, model: nn.Module | None = None, memory: Memory | None = None, **options: Any) -> Replay:
    """A learner of one rank; with another ``seed`` its weights start elsewhere."""
    torch.manual_seed(seed)
    model = model or network()
    optimizer = options.pop("optimizer", torch.optim.Adam)(model.parameters(), options.pop("lr", 0.01))
    retrieval = options.pop("retrieval", MostInterfered(15, "mi2"))
    options = {"budget": 5, "distributed": True, **options}
    return Replay(model, optimizer, memory or ReservoirMemory(40, seed=1), retrieval, **options)


def momentum(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr, momentum=0.9)


def batch(rank: int, step: int, samples: int | None = None) -> tuple[Tensor, Tensor]:
    """The batch of a rank; ranks have different numbers of samples."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    samples = samples or 2 + rank + step % 3
    y = torch.randint(4, (samples,), generator=generator)
    return torch.randn(samples, 6, generator=generator) + y[:, None], y


def everything(made: Replay) -> Any:
    """All that a learner is, as tensors and plain values."""
    return made.state_dict()


def weights(made: Replay) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in made.model.parameters()])


def statistics(made: Replay) -> Tensor:
    return torch.cat([buffer.double().flatten() for name, buffer in made.model.named_buffers() if "running" in name])
