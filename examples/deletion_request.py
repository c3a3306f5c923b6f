"""A deletion request: a customer's rows leave the memory, and the bytes of its file, for good.

The customer's number travels with the row as a part of its input that the model does not see.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

from rehearse import Replay, ReservoirMemory

path = Path(tempfile.mkdtemp()) / "memory.rows"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
learner = Replay(
    model,
    torch.optim.SGD(model.parameters(), lr=0.1),
    ReservoirMemory(200, path=path),  # a file, so that we can look for the bytes
    prepare=lambda x: x["features"],
)

generator = torch.Generator().manual_seed(0)


def observe(customers: torch.Tensor) -> None:
    features = torch.randn(len(customers), 6, generator=generator)
    learner.observe({"features": features, "customer": customers}, (features[:, 0] > 0).long())


for _ in range(30):
    observe(torch.randint(1, 40, (10,), generator=generator))

memory = learner.memory
rows = memory.all()
secret = rows.x["features"][rows.x["customer"] == 7][0].numpy().tobytes()
print(f"{len(memory)} rows of {memory.seen} seen; customer 7 is in the file: {secret in path.read_bytes()}")

removed = memory.forget(predicate=lambda batch: batch.x["customer"] == 7)

print(f"{removed} rows removed; customer 7 is in the file: {secret in path.read_bytes()}")
assert not (memory.all().x["customer"] == 7).any()
observe(torch.randint(8, 40, (10,), generator=generator))  # and life goes on
print(f"{len(memory)} rows; the weights, and checkpoints from before, still bear the rows' traces")
