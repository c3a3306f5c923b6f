"""Resume after a crash: the process dies in the middle, the next one goes on, and no bit is different."""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import rehearse
from rehearse import MostInterfered, Replay, ReservoirMemory
from rehearse.lab.streams import from_arrays

random = np.random.default_rng(0)
y = np.repeat(np.arange(4), 100)
x = (y[:, None] + random.normal(size=(400, 6))).astype(np.float32)


def stream():
    return from_arrays(x, y, by="class", n_tasks=2, batch_size=10, seed=1)


def new_learner() -> Replay:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4))
    return Replay(model, torch.optim.Adam(model.parameters(), lr=0.01), ReservoirMemory(50), MostInterfered())


def run(learner: Replay, start: int, checkpoint: Path | None = None, crash_at: int | None = None) -> None:
    for number, batch in enumerate(stream().batches(start=start), start=start):
        if number == crash_at:
            raise KeyboardInterrupt  # or the power fails
        learner.observe(batch.x, batch.y, batch.task)
        if checkpoint and number % 5 == 4:
            rehearse.save(learner, checkpoint)  # the old file stays until the new one is whole


uninterrupted = new_learner()
run(uninterrupted, start=0)

checkpoint = Path(tempfile.mkdtemp()) / "learner.rehearse"
try:
    run(new_learner(), start=0, checkpoint=checkpoint, crash_at=23)
except KeyboardInterrupt:
    print("crashed at batch 23")

resumed = new_learner()
rehearse.load(checkpoint, into=resumed)
position = resumed.samples_observed // 10
print(f"going on from batch {position}")
run(resumed, start=position)

for one, other in zip(uninterrupted.model.parameters(), resumed.model.parameters(), strict=True):
    assert torch.equal(one, other)
print("the same to the bit as if nothing had happened")
