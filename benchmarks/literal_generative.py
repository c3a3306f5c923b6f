"""The step of GEN and GEN-MIR as in the reference implementation, independent of the library.

The search goes round by round in a Python loop, ten points at a time; a deep copy of each network takes the virtual
step along the gradient that is left from the batch before; both parts of a generator's loss are computed, also if the
coefficient of one is zero; a gated layer with an activation computes its values twice. All that is as published.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Setting:
    """The published settings that decide what a step costs, and the weights of the search."""

    memories: int  # rounds
    updates: int
    lr: float
    replay_weight: float
    depth: int
    dropout: float
    search_steps: int = 0  # 0: plain samples
    hidden: int = 128
    latent: int = 50
    warmup: int = 1000


SETTINGS = {
    "gen": Setting(memories=4, updates=15, lr=0.01, replay_weight=3, depth=2, dropout=0.0),
    "gen-control": Setting(memories=10, updates=15, lr=0.01, replay_weight=3, depth=1, dropout=0.4),
    "gen-mir": Setting(memories=10, updates=15, lr=0.01, replay_weight=3, depth=1, dropout=0.4, search_steps=10),
}


class Gated(nn.Module):
    def __init__(self, into: int, out: int, activation: Callable[[Tensor], Tensor] | None) -> None:
        super().__init__()
        self.values, self.gates, self.activation = nn.Linear(into, out), nn.Linear(into, out), activation

    def forward(self, x: Tensor) -> Tensor:
        values = self.values(x)
        if self.activation is not None:
            values = self.activation(self.values(x))  # once more: the published layer does not use the first product
        return values * torch.sigmoid(self.gates(x))


def classifier() -> nn.Module:
    return nn.Sequential(nn.Flatten(), Gated(784, 400, torch.relu), nn.Dropout(0.2), Gated(400, 10, None))


def layers(into: int, setting: Setting) -> nn.Sequential:
    widths = [into, *[setting.hidden] * setting.depth]
    parts: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        parts += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(setting.dropout)]
    return nn.Sequential(*parts)


class Vae(nn.Module):
    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.latent = setting.latent
        self.encoder, self.decoder = layers(784, setting), layers(setting.latent, setting)
        self.mean, self.variance = (nn.Linear(setting.hidden, setting.latent) for _ in range(2))
        self.pixels = nn.Linear(setting.hidden, 784)

    def decode(self, z: Tensor) -> Tensor:
        return torch.sigmoid(self.pixels(self.decoder(z))).view(-1, 1, 28, 28)

    def generate(self, rows: int) -> Tensor:
        return self.decode(torch.randn(rows, self.latent))

    def forward(self, x: Tensor, beta: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
        """The loss with its KL part weighted, reconstruction, and a sampled KL: sums over features, means over rows.

        All three are made whoever asks for one; densities are those of a log-variance, and summed row by row first.
        """
        hidden = self.encoder(x.view(len(x), -1))
        mean, variance = self.mean(hidden), F.softplus(self.variance(hidden))
        z = torch.randn_like(mean) * variance.sqrt() + mean
        p = self.decode(z).clamp(1e-6, 1 - 1e-6)
        reconstruction = -(x * p.log() + (1 - x) * (1 - p).log()).sum()
        kl = (log_normal(z, mean, variance.log()) - (-0.5 * z * z).sum(1)).sum()
        total = reconstruction + beta * kl
        return total / len(x), reconstruction / len(x), kl / len(x)


def log_normal(z: Tensor, mean: Tensor, log_variance: Tensor) -> Tensor:
    """log N(z) of each row, without the constant that cancels."""
    distance = (z - mean) * (z - mean) * log_variance.exp().reciprocal()
    return (-0.5 * (log_variance + distance)).sum(1)


def virtual(network: nn.Module, lr: float) -> nn.Module:
    """A copy moved along the gradient that lies there."""
    copied = copy.deepcopy(network)
    with torch.no_grad():
        for own, parameter in zip(copied.parameters(), network.parameters(), strict=True):
            if parameter.grad is not None:
                own -= lr * parameter.grad
    return copied


def soft(target: Tensor, scores: Tensor) -> Tensor:
    return -(target * F.log_softmax(scores, dim=1)).sum(1).mean()


class Literal:
    """The learner: called with batches, and with `end_task` between tasks."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        torch.manual_seed(0)
        self.classifier, self.vae = classifier(), Vae(setting)
        self.by_sgd = torch.optim.SGD(self.classifier.parameters(), lr=setting.lr)
        self.by_adam = torch.optim.Adam(self.vae.parameters())
        self.previous: tuple[nn.Module, Vae] | None = None
        self.seen = 0

    def end_task(self) -> None:
        self.previous = copy.deepcopy(self.classifier).eval(), copy.deepcopy(self.vae).eval()
        self.seen = 0

    def __call__(self, x: Tensor, y: Tensor) -> None:
        self.seen += len(x)
        beta = min(self.seen / self.setting.warmup, 1.0)
        self._generator_steps(x, beta)
        self._classifier_steps(x, y)

    def _generator_steps(self, x: Tensor, beta: float) -> None:
        replayed: Tensor | None = None
        for update in range(self.setting.updates):
            loss = self.vae(x, beta)[0]
            if self.previous is not None:
                if update == 0:
                    replayed = self._retrieved(len(x), generator=True)
                loss = loss + self.setting.replay_weight * self.vae(replayed, beta)[0]
            self.by_adam.zero_grad()
            loss.backward()
            self.by_adam.step()

    def _classifier_steps(self, x: Tensor, y: Tensor) -> None:
        replayed, labels = None, None
        for update in range(self.setting.updates):
            loss = F.cross_entropy(self.classifier(x), y)
            if self.previous is not None:
                if update == 0:
                    replayed = self._retrieved(len(x), generator=False)
                    labels = self.previous[0](replayed).softmax(1).detach()
                p = self.classifier(replayed).softmax(1).clamp(min=1e-5)
                loss = loss + self.setting.replay_weight * -(labels * p.log()).sum(1).mean()
            self.by_sgd.zero_grad()
            loss.backward()
            self.by_sgd.step()

    def _retrieved(self, rows: int, *, generator: bool) -> Tensor:
        assert self.previous is not None
        old_classifier, old_vae = self.previous
        if not self.setting.search_steps:
            return old_vae.generate(rows * self.setting.memories).detach()
        moved = virtual(self.vae if generator else self.classifier, self.setting.lr)
        found = torch.empty(0, self.setting.latent)
        for round_ in range(self.setting.memories):
            z = torch.randn(rows, self.setting.latent)
            for _ in range(self.setting.search_steps):
                z = z.detach().requires_grad_()
                pictures = old_vae.decode(z)
                scores = old_classifier(pictures)
                entropy = soft(scores.softmax(1), scores)
                if generator:
                    ahead, before = moved(pictures), old_vae(pictures)
                    interference = ahead[2] - before[2]
                else:
                    interference = soft(scores.softmax(1), moved(pictures))
                apart = torch.zeros(())
                for other in range(round_):
                    apart = apart + F.mse_loss(z, found[other * rows : (other + 1) * rows]) / round_
                gain = 0.1 * interference + -1.0 * entropy + 1.0 * apart
                z = z + torch.autograd.grad(gain, z)[0]
            found = torch.cat([found, z.detach()])
        if found.isnan().any():
            found = torch.randn_like(found)
        return old_vae.decode(found).detach()
