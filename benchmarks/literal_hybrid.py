"""AE and AE-MIR as in the reference implementation, independent of the library except for the two networks.

Every network is in train mode at all times, in torch's default layout and float32; eligible codes are found by a
boolean mask over the whole buffer; virtual and previous networks are deep copies.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LR, REPLAYED, NEIGHBOURHOOD, STRENGTH = 0.1, 100, 500, 0.5
KL, STEP = 20.0, 10.0


class LiteralHybrid:
    """One learner with a full buffer; ``search`` makes it AE-MIR."""

    def __init__(self, model: nn.Module, autoencoder: nn.Module, codes: Tensor, y: Tensor, task: Tensor, search: bool):
        self.model, self.autoencoder, self.search = model.train(), autoencoder.train(), search
        self.previous_model, self.previous_autoencoder = copy.deepcopy(model), copy.deepcopy(autoencoder)
        self.sgd = torch.optim.SGD(model.parameters(), lr=LR)
        self.adam = torch.optim.Adam(autoencoder.parameters())
        self.codes, self.y, self.task = codes, y, task

    def autoencoder_step(self, x: Tensor, memories: Tensor | None) -> Tensor:
        """Step on incoming and decoded samples; return the reconstructions of the incoming ones."""
        both = x if memories is None else torch.cat([x, memories])
        rebuilt = self.autoencoder.decode(self.autoencoder.encode(both))
        self.adam.zero_grad()
        F.mse_loss(rebuilt, both).backward()
        self.adam.step()
        return rebuilt[: len(x)].detach()

    def training_epoch_step(self, x: Tensor, y: Tensor, task: int) -> None:
        """Learn from a batch of the first four epochs: the autoencoder alone."""
        self.autoencoder_step(x, self.decoded(self.random(task)))

    def last_epoch_step(self, x: Tensor, y: Tensor, task: int) -> None:
        """Learn from a batch of the fifth epoch: the autoencoder once more, and the classifier."""
        rows = self.random(task)
        if rows is not None and self.search:
            rows = self.interfered(x, y, task)
        memories = self.decoded(rows)
        rebuilt = self.autoencoder_step(x, memories)
        self.sgd.zero_grad()
        if memories is None or rows is None:
            F.cross_entropy(self.model(x), y).backward()
        else:
            scores = self.model(torch.cat([rebuilt, memories]))
            new = F.cross_entropy(scores[: len(x)], y, reduction="sum")
            old = F.cross_entropy(scores[len(x) :], self.y[rows], reduction="sum")
            ((STRENGTH * old + (1 - STRENGTH) * new) / len(scores)).backward()
        self.sgd.step()

    def eligible(self, task: int) -> Tensor:
        return ((self.task != task) & (self.task >= 0)).nonzero().flatten()

    def random(self, task: int) -> Tensor | None:
        eligible = self.eligible(task)
        return eligible[torch.randperm(len(eligible))[:REPLAYED]] if len(eligible) else None

    def decoded(self, rows: Tensor | None) -> Tensor | None:
        if rows is None:
            return None
        with torch.no_grad():
            return self.previous_autoencoder.decode(self.codes[rows])

    def interfered(self, x: Tensor, y: Tensor, task: int) -> Tensor:
        """Return the nearest of 500 codes to each code of the batch after one ascent, these ten ten times."""
        virtual = copy.deepcopy(self.model)
        sgd = torch.optim.SGD(virtual.parameters(), lr=LR)
        sgd.zero_grad()
        F.cross_entropy(virtual(x), y).backward()
        sgd.step()
        with torch.no_grad():
            code = self.previous_autoencoder.encode(x)
        code.requires_grad_()
        image = self.previous_autoencoder.decode(code)
        old, new = F.log_softmax(self.previous_model(image), 1), F.log_softmax(virtual(image), 1)
        gain = KL * (old.exp() * (old - new)).sum() + (old.exp() * old).sum() + (new.exp() * new).sum()
        (slope,) = torch.autograd.grad(gain, code)
        moved = (code + STEP * slope).detach().flatten(1)
        eligible = self.eligible(task)
        near = eligible[torch.randperm(len(eligible))[:NEIGHBOURHOOD]]
        held = self.codes[near].flatten(1)
        closest = torch.stack([(held - point).square().sum(1).argmin() for point in moved])
        return near[closest].repeat(REPLAYED // len(x))
