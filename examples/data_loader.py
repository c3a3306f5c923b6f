"""A DataLoader as the stream: no wrapper, no length, no tasks."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from rehearse import Replay, ReservoirMemory


class Sensor(IterableDataset):
    """Readings without end whose meaning turns slowly."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        generator = torch.Generator().manual_seed(0)
        for time in range(10**9):
            reading = torch.randn(8, generator=generator)
            reading[0] = 1 + time // 1000  # the regime in which the sensor is
            yield reading, int(reading[1 + time // 1000 % 2] > 0)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
learner = Replay(model, torch.optim.Adam(model.parameters(), lr=0.003), ReservoirMemory(500))

for number, (x, y) in enumerate(DataLoader(Sensor(), batch_size=10)):
    step = learner.observe(x, y)
    if number % 50 == 49:
        print(f"batch {number + 1}: incoming {step.incoming_loss:.2f}, replayed {step.replayed_loss:.2f}")
    if number == 199:  # a stream has no end; this example has
        break
