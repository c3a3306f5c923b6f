"""Five thousand steps take no more memory than one thousand, for every kind of learner.

Freed memory that the process keeps could hide a leak. Besides the resident memory, the tests therefore measure what is
allocated in it: bytes of the C library's heap, where tensors are, and blocks of Python's objects.
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

STEPS, WARM = 5_000, 1_000
# A tensor of one number takes at least 500 bytes and a block of Python: left behind at each of 4,000 steps it would
# take 2,000,000 bytes; left behind at each search (400 of them) it would still take 200,000.
BOUNDS = {"resident": 3_000_000, "allocated": 150_000, "objects": 2_000}
UPDATES = {"gen": 10, "gen-mir": 10, "ae": 10, "ae-mir": 10}  # steps per search
# Of each kind of learner the method that comes last, which stores most in a step; ae-mir would take minutes.
HARDEST = sorted({type(make(method)): method for method in METHODS if method != "ae-mir"}.values())
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
    """Return what is in use beyond the bounds after all steps, compared with the first ones."""
    stream = tiny_stream(size=1)
    for step in range(0, STEPS, updates):
        if step == WARM:
            before = memory_in_use()
        learner.observe(*stream[step // updates % len(stream)])
    return too_much(before, memory_in_use())


@pytest.fixture
def least(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the smallest networks possible: only the number of steps counts here."""
    linear = {"linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(8, CLASSES))}
    monkeypatch.setattr(conftest, "NETWORKS", linear)
    smallest = {"hidden": 2, "latent": 1, "memories": 1, "search_steps": 1, "channels": 1}
    smallest |= {"autoencoder_budget": 1, "autoencoder_epochs": 1}
    monkeypatch.setattr(conftest, "SMALL", conftest.SMALL | smallest)


pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc here")


@pytest.mark.usefixtures("least")
@pytest.mark.parametrize("method", HARDEST)
def test_five_thousand_steps_take_no_more_memory_than_one_thousand(method: str) -> None:
    updates = UPDATES.get(method, 1)
    assert taken(make(method, network="linear", updates=updates), updates) == {}


class Leaking:
    """A learner that leaves one number behind at each step."""

    def __init__(self) -> None:
        self.left: list[torch.Tensor] = []

    def observe(self, *batch: Any) -> None:
        self.left.append(torch.zeros(1))


def test_one_small_tensor_left_behind_at_each_step_is_detected() -> None:
    leaking: Any = Leaking()
    assert taken(leaking).keys() >= {"allocated", "objects"} & memory_in_use().keys()
