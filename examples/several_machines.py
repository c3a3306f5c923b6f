"""One model on several machines: each process learns its share of the stream. One of them dies, and torchrun resumes.

python several_machines.py              starts two processes on this machine
torchrun ... several_machines.py        is what it runs; see docs/how-to/several-machines.md
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

if "RANK" not in os.environ:
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "SAVES": tempfile.mkdtemp()}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    done = subprocess.run([*torchrun, "--nproc-per-node=2", "--max-restarts=1", __file__])
    sys.exit(done.returncode)

import torch
import torch.distributed as dist
from torch import nn

import rehearse
from rehearse import MostInterfered, Replay, ReservoirMemory

path, restart = Path(os.environ["SAVES"], "learner"), os.environ["TORCHELASTIC_RESTART_COUNT"]


def share(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch of a rank: classes 0 and 1 first, then 2 and 3. The ranks need not have equally many samples."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    y = 2 * (step // 60) + torch.randint(2, (8 + 4 * rank,), generator=generator)
    return torch.randn(len(y), 6, generator=generator) + 3 * nn.functional.one_hot(y, 6), y


rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.FileStore(f"{path}.store{restart}", ranks)  # a new one each time: the dead have left their addresses in it
dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 4))  # the first rank's weights go to all
memory = ReservoirMemory(100)  # of all ranks together
learner = Replay(model, torch.optim.SGD(model.parameters(), lr=0.05), memory, MostInterfered(), distributed=True)
if path.exists():
    rehearse.load(path, into=learner)
first = learner.progress.steps
for step, (x, y) in enumerate(learner.ranks.in_step(share(rank, step) for step in range(first, 120)), first):
    learner.observe(x, y, task=step // 60)
    if step % 20 == 19:
        rehearse.save(learner, path)  # every rank calls it
    if restart == "0" and rank == 1 and step == 70:
        print("rank 1 dies at step 70", flush=True)
        os._exit(1)

x, y = (torch.cat(parts) for parts in zip(*(share(9, step) for step in range(0, 120, 10)), strict=True))
right = (learner.predict(x) == y).float().mean()
print(f"rank {rank} resumed at step {first}: {right:.0%} right, {len(memory)} of {memory.capacity} samples", flush=True)
dist.barrier()  # nobody leaves before the others are done
dist.destroy_process_group()
