"""What the literal versions of GEM and A-GEM share: a small network, a stream of tasks, flat gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

Vector = np.ndarray[Any, Any]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def stream(steps_per_task: int = 6, tasks: int = 3) -> list[tuple[Tensor, Tensor, int]]:
    chance = torch.Generator().manual_seed(1)
    return [
        (torch.randn(5, 4, generator=chance), torch.randint(0, 3, (5,), generator=chance), task)
        for task in range(tasks)
        for _ in range(steps_per_task)
    ]


def flat_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Vector:
    loss = nn.functional.cross_entropy(model(x), y)
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))]).double().numpy()


def take_step(model: nn.Module, step: Vector, lr: float) -> None:
    start = 0
    with torch.no_grad():
        for parameter in model.parameters():
            part = torch.from_numpy(step[start : start + parameter.numel()]).view_as(parameter)
            parameter -= lr * part.to(parameter)
            start += parameter.numel()
