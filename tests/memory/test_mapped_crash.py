"""A memory in a file, killed with SIGKILL: at random moments, and in the middle of every write it makes.

A child process trains with a mapped memory, saving now and then, and is killed again and again; whenever it is
started it loads the last checkpoint. In the end it must hold to the bit what an uninterrupted run in RAM holds.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Children are forked from one process that has torch loaded, and run on until they are killed: in the mode "lines"
# by themselves, at a random line of the code that writes the files; in the mode "time" from outside.
SCRIPT = """
import os, random, signal, sys, time, traceback
from pathlib import Path
import torch
from torch import nn
import rehearse
from rehearse import ClassBalancedMemory, Replay, ReservoirMemory, RingMemory, Uniform

torch.set_num_threads(1)
folder, policy, mode, kills = Path(sys.argv[1]), globals()[sys.argv[2]], sys.argv[3], int(sys.argv[4])
checkpoint, SAVE = folder / "checkpoint", 3
OURS = tuple(f"rehearse/{name}.py" for name in ("memory/mapped/file", "memory/mapped/journal", "files", "checkpoint"))
chance = random.Random(sys.argv[2] + mode)


def learner(path):
    torch.manual_seed(1)
    model = nn.Linear(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Replay(model, optimizer, policy(30, path=path, seed=3), Uniform(), budget=4)


def step(one, number):
    generator = torch.Generator().manual_seed(number)
    x, y = torch.randn(8, 6, generator=generator), torch.randint(0, 4, (8,), generator=generator)
    one.observe(x, y, task=number // 40)


def resumed():
    one = learner(folder / "samples")
    if checkpoint.exists():
        rehearse.load(checkpoint, into=one)
    return one


def run_until_killed(lines):
    if mode == "lines":
        left = [lines]

        def trace(frame, event, argument):
            if not frame.f_code.co_filename.endswith(OURS):
                return None
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
    one = resumed()
    while True:
        number = one.samples_observed // 8
        step(one, number)
        if number % SAVE == 0:
            rehearse.save(one, checkpoint)


step(learner(None), 0)  # torch loads much of itself at the first step: once, here, and not in every child
for _ in range(kills):
    pid = os.fork()
    if pid == 0:
        try:
            run_until_killed(chance.randrange(3000))
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    if mode == "time":
        time.sleep(chance.uniform(0, 0.3))
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        sys.exit("the child failed")

one, other = resumed(), learner(None)
print("resumed after step", one.samples_observed // 8)
while one.samples_observed < 8 * 100 or other.samples_observed < one.samples_observed:
    if other.samples_observed == one.samples_observed:
        step(one, one.samples_observed // 8)
    step(other, other.samples_observed // 8)
mine, reference = one.memory.all(), other.memory.all()
assert torch.equal(mine.slots, reference.slots)
assert torch.equal(mine.x, reference.x) and torch.equal(mine.y, reference.y) and torch.equal(mine.task, reference.task)
for a, b in zip(one.model.parameters(), other.model.parameters()):
    assert torch.equal(a, b)
assert one.memory.sample(9).slots.tolist() == other.memory.sample(9).slots.tolist()
print("same")
"""


@pytest.mark.parametrize(
    ("policy", "mode"), [("ReservoirMemory", "lines"), ("RingMemory", "lines"), ("ClassBalancedMemory", "time")]
)
def test_killed_again_and_again_it_ends_where_an_uninterrupted_run_ends(tmp_path: Path, policy: str, mode: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), policy, mode, "25"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("same\n")
