"""Steps of ER and ER-MIR as in the reference implementation, independent of the library.

A deep copy of the model takes the virtual step along a flattened gradient, eligible samples are found by a boolean mask
over the whole memory, every batch has a pass of its own, everything is float32 in torch's default layout.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class Buffer:
    """Stored samples in float32, with labels and tasks."""

    x: Tensor
    y: Tensor
    task: Tensor

    @classmethod
    def empty(cls, capacity: int, shape: tuple[int, ...]) -> Buffer:
        x = torch.zeros(capacity, *shape)
        return cls(x, torch.zeros(capacity, dtype=torch.long), torch.full((capacity,), -1))

    def put(self, slot: int, x: Tensor, y: Tensor, task: int) -> None:
        self.x[slot], self.y[slot], self.task[slot] = x, y, task

    def eligible(self, task: int) -> Tensor:
        """Return the slots of other tasks, by a mask over all slots."""
        return ((self.task != task) & (self.task >= 0)).nonzero().flatten()


class Reservoir:
    """Algorithm R, one sample after the other."""

    def __init__(self, capacity: int, seed: int = 0) -> None:
        self.capacity, self.seen = capacity, 0
        self.random = np.random.default_rng(seed)

    def add(self, buffer: Buffer, x: Tensor, y: Tensor, task: int) -> None:
        for row in range(len(x)):
            slot = self.seen if self.seen < self.capacity else int(self.random.integers(0, self.seen + 1))
            if slot < self.capacity:
                buffer.put(slot, x[row], y[row], task)
            self.seen += 1


def draw(buffer: Buffer, task: int, n: int) -> Tensor | None:
    """Return ``n`` eligible slots at random."""
    eligible = buffer.eligible(task)
    if len(eligible) == 0:
        return None
    return eligible[torch.randperm(len(eligible))[:n]]


def flat_gradient(model: nn.Module) -> Tensor:
    """Return all gradients in one vector; zero where a parameter has none."""
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return torch.cat([part.reshape(-1) for part in parts])


def virtual_copy(model: nn.Module, gradient: Tensor, lr: float) -> nn.Module:
    """Return a copy of the model after one step of SGD along the flattened gradient."""
    copied = copy.deepcopy(model)
    start = 0
    for parameter in copied.parameters():
        size = parameter.numel()
        parameter.data -= lr * gradient[start : start + size].view_as(parameter)
        start += size
    return copied


def interference(model: nn.Module, x: Tensor, y: Tensor, gradient: Tensor, lr: float) -> tuple[Tensor, Tensor]:
    """Return the losses of candidates before and after the virtual step, in the model's present mode."""
    virtual = virtual_copy(model, gradient, lr)
    with torch.no_grad():
        before = F.cross_entropy(model(x), y, reduction="none")
        after = F.cross_entropy(virtual(x), y, reduction="none")
    return before, after


def er_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, buffer: Buffer, x: Tensor, y: Tensor, task: int, budget: int
) -> None:
    """Pass the incoming batch, then the replayed one, then step along the sum of both gradients."""
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    slots = draw(buffer, task, budget)
    if slots is not None:
        F.cross_entropy(model(buffer.x[slots]), buffer.y[slots]).backward()
    optimizer.step()


def er_mir_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    buffer: Buffer,
    x: Tensor,
    y: Tensor,
    task: int,
    budget: int,
    candidates: int,
    lr: float,
) -> Tensor | None:
    """Take the step of Algorithm 1 without shortcuts, and return the replayed slots.

    The gradient for the virtual step comes from a pass of its own, as in the reference implementation; the update then
    passes the incoming batch again.
    """
    slots = draw(buffer, task, candidates)
    chosen = None
    if slots is not None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        before, after = interference(model, buffer.x[slots], buffer.y[slots], flat_gradient(model), lr)
        chosen = slots[(after - before).sort(descending=True)[1][:budget]]
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    if chosen is not None:
        F.cross_entropy(model(buffer.x[chosen]), buffer.y[chosen]).backward()
    optimizer.step()
    return chosen
