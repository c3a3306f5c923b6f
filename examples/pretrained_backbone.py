"""A pretrained backbone with a new head: the body is frozen, classes that were never heard of arrive later."""

import torch
from torch import Tensor, nn

from rehearse import MostInterfered, Replay, ReservoirMemory

generator = torch.Generator().manual_seed(0)
centres = torch.randn(8, 16, generator=generator) * 2


def draw(classes: list[int], samples: int) -> tuple[Tensor, Tensor]:
    y = torch.tensor(classes).repeat(samples)
    return centres[y] + torch.randn(len(y), 16, generator=generator), y


# Stands for a network from a model zoo: trained here, on the spot, on four classes.
torch.manual_seed(0)
backbone = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
pretraining = nn.Sequential(backbone, nn.Linear(32, 4))
optimizer = torch.optim.Adam(pretraining.parameters(), lr=0.01)
for _ in range(100):
    x, y = draw([0, 1, 2, 3], 16)
    optimizer.zero_grad()
    nn.functional.cross_entropy(pretraining(x), y).backward()
    optimizer.step()

backbone.requires_grad_(False)
model = nn.Sequential(backbone, nn.Linear(32, 2))  # a new head, for the two classes known so far
frozen = backbone[0].weight.clone()
learner = Replay(
    model,
    torch.optim.SGD(model[1].parameters(), lr=0.1),
    ReservoirMemory(100),
    MostInterfered(layers="head"),  # only the head moves, so the look-ahead moves the head alone
)

for first in (0, 2, 4, 6):  # classes 4 to 7 are new to the backbone too
    learner.grow(first + 2)
    for _ in range(40):
        learner.observe(*draw([first, first + 1], 5))

x, y = draw(list(range(8)), 50)
assert torch.equal(backbone[0].weight, frozen)
print(f"{model[1].out_features} outputs, {(learner.predict(x) == y).float().mean():.0%} of all classes")
