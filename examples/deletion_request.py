"""A deletion request: a customer's samples leave the memory, and the bytes of its file, for good.

The customer's name comes with the sample as its id, of which the memory keeps a hash.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

from rehearse import Replay, ReservoirMemory

path = Path(tempfile.mkdtemp()) / "memory.samples"
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
learner = Replay(
    model,
    torch.optim.SGD(model.parameters(), lr=0.1),
    ReservoirMemory(200, path=path),  # a file, so that we can look for the bytes
)

generator = torch.Generator().manual_seed(0)


def observe(customers: list[str]) -> torch.Tensor:
    features = torch.randn(len(customers), 6, generator=generator)
    learner.observe(features, (features[:, 0] > 0).long(), id=customers)
    return features


for _ in range(20):
    observe([f"customer {number}" for number in torch.randint(40, (8,), generator=generator).tolist()])
secret = observe(["anna", "ben", "carla"])[0].numpy().tobytes()
memory = learner.memory
print(f"{len(memory)} samples of {memory.seen} seen; anna's is in the file: {secret in path.read_bytes()}")

removed = learner.forget(ids=["anna"])

print(f"{removed} sample removed; anna's is in the file: {secret in path.read_bytes()}")
assert removed == 1
assert secret not in path.read_bytes()
observe(["ben", "carla"])  # the learner continues
print(f"{len(memory)} samples; the weights, and earlier checkpoints, still bear traces of what was removed")
