"""A regression stream: one squared error per sample is all that replay and its look-ahead need."""

import math

import torch
from torch import Tensor, nn

from rehearse import Finetune, MostInterfered, Replay, ReservoirMemory

generator = torch.Generator().manual_seed(0)


def draw(low: float, high: float, samples: int) -> tuple[Tensor, Tensor]:
    """A noisy sine, seen through a window."""
    x = low + (high - low) * torch.rand(samples, 1, generator=generator)
    return x, torch.sin(x) + 0.05 * torch.randn(samples, 1, generator=generator)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


plain, model = network(), network()
forgetful = Finetune(plain, torch.optim.SGD(plain.parameters(), lr=0.05), loss=nn.MSELoss())
learner = Replay(
    model,
    torch.optim.SGD(model.parameters(), lr=0.05),
    ReservoirMemory(300),
    MostInterfered(candidates=50),
    loss=nn.MSELoss(),
)

for window in range(4):  # the window moves from left to right and never comes back
    low = -math.pi + window * math.pi / 2
    for _ in range(150):
        x, y = draw(low, low + math.pi / 2, 10)
        forgetful.observe(x, y)
        step = learner.observe(x, y)

x, y = draw(-math.pi, math.pi, 1000)
for name, one in (("no replay", forgetful), ("replay", learner)):
    print(f"{name}: mean squared error {(one.predict(x) - y).square().mean():.3f} over all windows")
worst = step.interference.max()
print(f"the last step would have raised the squared error of one memory by {worst:.4f}")
