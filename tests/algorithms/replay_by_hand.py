"""What the literal versions of ACE and DER++ share: a small learner, a stream, a step by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rehearse.learners import Replay
from rehearse.memory import ReservoirMemory


def net(outputs: int = 4) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))


def learner(loss: Any, retrieval: Any, model: nn.Module | None = None, **options: Any) -> Replay:
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    memory = ReservoirMemory(12, seed=0)
    return Replay(model, optimizer, memory, retrieval, loss=loss, budget=3, exclude_current_task=False, **options)


def batches(steps: int = 12) -> list[tuple[Tensor, Tensor, int]]:
    chance = torch.Generator().manual_seed(3)
    return [
        (torch.randn(4, 3, generator=chance), torch.randint(0, 4, (4,), generator=chance), step // 6)
        for step in range(steps)
    ]


def sgd(model: nn.Module, loss: Tensor) -> None:
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter -= 0.2 * gradient
