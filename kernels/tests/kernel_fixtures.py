"""Tensors, tolerances and networks that several tests use."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

HALF_A_DIGIT = 2.0**-8  # bfloat16 has eight bits: half of the last one, and the rounding of the sums


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16)


def assert_near(found: Tensor, exact: Tensor, relative: float) -> None:
    """Compare each number relative to its size, and numbers near zero relative to the size of all."""
    spread = exact.detach().double().square().mean().sqrt()
    torch.testing.assert_close(found.double(), exact.double(), rtol=relative, atol=2e-5 * float(spread) + 1e-30)


def bfloat16() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


def sequence(*parts: nn.Module) -> nn.Sequential:
    """Return a sequential model with ``channels_last = True``."""
    net = nn.Sequential(*parts)
    net.channels_last = True
    return net


def small() -> nn.Sequential:
    """Return a model that is one layer for the kernels: convolution, batch-norm and ReLU."""
    torch.manual_seed(0)
    return sequence(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())


class Block(nn.Module):
    """A residual block as in ResNet-18."""

    relu_of_sum = ("residual", "shortcut")

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(inplace=True),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
            nn.BatchNorm2d(after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.residual(x)
        total += self.shortcut(x)
        return F.relu(total, inplace=True)


class ResidualNetwork(nn.Module):
    """A reduced ResNet-18: four stages of two blocks, 20 batch-norms."""

    channels_last = True

    def __init__(self, base: int = 20) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, base, 3, padding=1, bias=False),
            nn.BatchNorm2d(base),
            nn.ReLU(inplace=True),
            *(Block(base, base), Block(base, base)),
            *(Block(base, 2 * base, 2), Block(2 * base, 2 * base)),
            *(Block(2 * base, 4 * base, 2), Block(4 * base, 4 * base)),
            *(Block(4 * base, 8 * base, 2), Block(8 * base, 8 * base)),
            nn.AvgPool2d(4),
            nn.Flatten(),
        )
        self.head = nn.Linear(8 * base, 10)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(x))
        return logits


class Autoencoder(nn.Module):
    """Convolutions of stride 2 and transposed ones, 6 batch-norms."""

    channels_last = True

    def __init__(self, channels: int = 20) -> None:
        super().__init__()
        sides: dict[str, Any] = {"kernel_size": 4, "stride": 2, "padding": 1, "bias": False}
        down, up = [3, channels, channels], [channels, channels, 3]
        self.encoder = nn.Sequential(
            *(
                part
                for a, b in itertools.pairwise(down)
                for part in (nn.Conv2d(a, b, **sides), nn.BatchNorm2d(b), nn.ReLU())
            ),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
        )
        self.decoder = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 1),
            nn.BatchNorm2d(channels),
            *(
                part
                for a, b in itertools.pairwise(up)
                for part in (nn.ConvTranspose2d(a, b, **sides), nn.BatchNorm2d(b), nn.ReLU(inplace=True))
            ),
        )

    def forward(self, x: Tensor) -> Tensor:
        image: Tensor = self.decoder(self.encoder(x)).tanh()
        return image
