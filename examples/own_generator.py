"""Your own classifier and generator: no sample is stored, imagined ones are searched for what would be forgotten."""

import numpy as np
import torch
from torch import Tensor, nn

import rehearse
from rehearse.lab.streams import from_arrays
from rehearse.latent import Elbo, gaussian_kl
from rehearse.learners import Coefficients, GenerativeReplay, LatentRetrieval

random = np.random.default_rng(0)
y = np.repeat(np.arange(10), 100)
x = (1.5 * random.normal(size=(10, 12))[y] + random.normal(size=(1000, 12))).astype(np.float32)


class SmallVAE(nn.Module):
    """All that a generator needs: the size of z, and these three methods."""

    latent = 4

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 2 * self.latent))
        self.decoder = nn.Sequential(nn.Linear(self.latent, 64), nn.ReLU(), nn.Linear(64, 12))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.encoder(x).chunk(2, dim=1)  # mean and log-variance

    def decode(self, z: Tensor) -> Tensor:
        return self.decoder(z)

    def loss(self, x: Tensor) -> Elbo:
        mean, log_variance = self.encode(x)
        z = mean + (log_variance / 2).exp() * torch.randn_like(mean)
        return Elbo((x - self.decode(z)).square().sum(1) / 2, gaussian_kl(mean, log_variance))


def new_learner(replay_weight: float = 1.0) -> GenerativeReplay:
    torch.manual_seed(0)
    classifier, generator = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 10)), SmallVAE()
    search = LatentRetrieval(coefficients=Coefficients(kl=1.0, entropy=0.1))  # interference before confidence
    return GenerativeReplay(
        classifier, torch.optim.SGD(classifier.parameters(), lr=0.1),
        generator, torch.optim.Adam(generator.parameters(), lr=0.003),
        classifier_retrieval=search, replay_weight=replay_weight, warmup=100, updates=5,
    )  # fmt: skip


for name, learner in (("no replay", new_learner(replay_weight=0.0)), ("replay", new_learner())):
    for batch in from_arrays(x, y, by="class", n_tasks=2, batch_size=10):
        learner.observe(batch.x, batch.y, batch.task)
    print(f"{name}: {(learner.predict(x[:500]).numpy() == y[:500]).mean():.0%} of the first task")

print(learner.diagnostics()["search"]["classifier"])
rehearse.save(learner, "learner.rehearse")
rehearse.load("learner.rehearse", into=(again := new_learner()))
print("the same predictions after loading:", torch.equal(again.predict(x), learner.predict(x)))
