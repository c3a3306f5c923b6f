"""Your own model and your own arrays: ten classes that arrive two at a time, with and without replay."""

import numpy as np
import torch
from torch import nn

from rehearse import Finetune, MostInterfered, Replay, ReservoirMemory
from rehearse.lab.streams import from_arrays

random = np.random.default_rng(0)
centres = random.normal(size=(10, 20))


def draw(samples_per_class: int) -> tuple[np.ndarray, np.ndarray]:
    y = np.repeat(np.arange(10), samples_per_class)
    return (centres[y] + random.normal(size=(len(y), 20))).astype(np.float32), y


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))


x, y = draw(200)
x_test, y_test = draw(50)

plain = network()
forgetful = Finetune(plain, torch.optim.SGD(plain.parameters(), lr=0.05))

model = network()
learner = Replay(
    model,
    torch.optim.SGD(model.parameters(), lr=0.05),
    ReservoirMemory(200),
    MostInterfered(candidates=50),
    budget=10,
)

for batch in from_arrays(x, y, by="class", n_tasks=5, batch_size=10):
    forgetful.observe(batch.x, batch.y, batch.task)
    learner.observe(batch.x, batch.y, batch.task)

for name, one in (("no replay", forgetful), ("replay of the most interfered", learner)):
    accuracy = (one.predict(x_test) == torch.as_tensor(y_test)).float().mean()
    print(f"{name}: {accuracy:.0%} of all ten classes")
