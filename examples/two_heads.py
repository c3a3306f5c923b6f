"""A model with two heads: what an object is, and how large. Targets and predictions are dicts, the loss is your own."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rehearse import Finetune, Replay, ReservoirMemory

KINDS, FEATURES = 6, 12
generator = torch.Generator().manual_seed(0)
centers = 2 * torch.randn(KINDS, FEATURES, generator=generator)
scales = torch.randn(KINDS, FEATURES, generator=generator)


def objects(kinds: list[int], samples: int = 20) -> tuple[Tensor, dict[str, Tensor]]:
    """Objects of these kinds; what their size is depends on the kind."""
    kind = torch.tensor(kinds)[torch.randint(len(kinds), (samples,), generator=generator)]
    noise = torch.randn(samples, FEATURES, generator=generator)
    return centers[kind] + noise, {"kind": kind, "size": (noise * scales[kind]).sum(1)}


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU())
        self.kind, self.size = nn.Linear(64, KINDS), nn.Linear(64, 1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.body(x)
        return {"kind": self.kind(features), "size": self.size(features).squeeze(1)}


def loss(outputs: dict[str, Tensor], y: dict[str, Tensor]) -> Tensor:
    """One value per sample: both heads together."""
    return F.cross_entropy(outputs["kind"], y["kind"], reduction="none") + 0.1 * (outputs["size"] - y["size"]) ** 2


for name in ("fine-tuning", "replay"):
    torch.manual_seed(0)
    model = Heads()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    if name == "replay":
        learner = Replay(model, optimizer, ReservoirMemory(200), budget=20, loss=loss)
    else:
        learner = Finetune(model, optimizer, loss=loss)
    for first in range(0, KINDS, 2):  # two kinds, and then two others
        for _ in range(200):
            learner.observe(*objects([first, first + 1]))
    x, y = objects(list(range(KINDS)), 2000)
    found = learner.predict(x)  # a class from one head, a value from the other
    right, error = (found["kind"] == y["kind"]).float().mean(), (found["size"] - y["size"]).abs().mean()
    print(f"{name}: {right:.0%} of all kinds, sizes off by {error:.2f}")
