"""Ten thousand steps take no more memory than two thousand, for every kind of learner.

Freed memory that the process keeps could swallow a leak, so beside the resident memory stands what is allocated in it:
bytes of the C library's heap, where tensors live, and blocks of Python's own objects.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import conftest
from conftest import CLASSES, METHODS, make, tiny_stream
from rehearse import Learner

STEPS, WARM = 10_000, 2_000
# A tensor of one number takes 500 bytes and more, and one of Python's blocks at least: left behind at each of 8,000
# steps it would take 4,000,000 bytes; left behind at each search (800 of them) it still would take 400,000.
BOUNDS = {"resident": 3_000_000, "allocated": 200_000, "objects": 4_000}
UPDATES = {"gen": 10, "gen-mir": 10, "ae": 10, "ae-mir": 10}  # steps for each search: its result serves all of them
# Of each kind of learner the method that keeps most at a step; ae-mir's search at each of them would take minutes.
HARDEST = ("finetune", "der-mir", "gem", "agem", "icarl", "gen-mir", "ae")
HEAP = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in HEAP]


def memory_in_use() -> dict[str, int]:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    found = {"resident": pages * 4096, "objects": sys.getallocatedblocks()}
    heap = getattr(ctypes.CDLL(None), "mallinfo2", None)  # since glibc 2.33
    if heap is not None:
        heap.restype = _Heap
        now = heap()
        found["allocated"] = now.uordblks + now.hblkhd
    return found


def too_much(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    growth = {name: after[name] - before[name] for name in before}
    return {name: grown for name, grown in growth.items() if grown >= BOUNDS[name]}


def taken(learner: Learner, updates: int = 1) -> dict[str, int]:
    """What is in use beyond the bounds after all the steps, compared with the first of them."""
    stream = tiny_stream(size=1)
    for step in range(0, STEPS, updates):
        if step == WARM:
            before = memory_in_use()
        learner.observe(*stream[step // updates % len(stream)])
    return too_much(before, memory_in_use())


@pytest.fixture
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest networks there can be: only the number of steps counts here."""
    linear = {"linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, CLASSES))}
    monkeypatch.setattr(conftest, "NETWORKS", linear)
    smallest = {"hidden": 2, "latent": 1, "memories": 1, "search_steps": 1, "channels": 1}
    smallest |= {"autoencoder_budget": 1, "autoencoder_epochs": 1}
    monkeypatch.setattr(conftest, "SMALL", conftest.SMALL | smallest)


pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")


@pytest.mark.usefixtures("least")
@pytest.mark.parametrize("method", HARDEST)
def test_ten_thousand_steps_take_no_more_memory_than_two_thousand(method: str) -> None:
    updates = UPDATES.get(method, 1)
    assert taken(make(method, network="linear", updates=updates), updates) == {}


def test_every_kind_of_learner_takes_them() -> None:
    assert {type(make(method)) for method in HARDEST} == {type(make(method)) for method in METHODS}


class Leaking:
    """Leaves one number behind at each step."""

    def __init__(self) -> None:
        self.left: list[torch.Tensor] = []

    def observe(self, *batch: Any) -> None:
        self.left.append(torch.zeros(1))


def test_one_small_tensor_left_behind_at_each_step_would_be_seen() -> None:
    leaking: Any = Leaking()
    assert taken(leaking).keys() >= {"allocated", "objects"} & memory_in_use().keys()
