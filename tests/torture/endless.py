"""Steps without an end: a learner that is saved, asked and told to forget now and then takes no more of anything.

Compared are the memory of the process, its open files, the files beside the learner's, and the time of a step: the
median of the last tenth with that of the first.
"""

from __future__ import annotations

import os
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from small_learners import CLASSES, FEATURES, batch
from test_flat import memory_in_use, too_much

import rehearse
from rehearse import Learner, MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.nets import MLP

from .dividing import divided
from .result import Result

CAPACITY, WARM = 100, 500
PREDICTED, SAVED, FORGOTTEN = 10, 500, 250  # every so many steps
SLOWER = 2.0  # times the first steps' median is too slow; a busy neighbor on the same core takes nearly as much
STREAM = [batch(number) for number in range(60)]
RETRIEVALS = {"er": Uniform, "er-mir": lambda: MostInterfered(10, "mi2")}
PLACES = ("in RAM", "mapped")


class Use(NamedTuple):
    """What the process has taken by now."""

    memory: dict[str, int]
    descriptors: int
    files: int


def run(tries: int, seed: int) -> Result:
    """Take so many steps, in all."""
    failures = list[str]()
    for (retrieval, place), steps in divided(tries, list(product(RETRIEVALS, PLACES))):
        with tempfile.TemporaryDirectory() as folder:
            learner = build(retrieval, Path(folder) / "samples" if place == "mapped" else None, seed)
            failures += [f"{retrieval} {place}: {failure}" for failure in taken(learner, steps, Path(folder))]
            learner.memory.close()
    return Result(tries, failures)


def build(retrieval: str, path: Path | None, seed: int) -> Replay:
    """Return a small learner, with the samples in a file or in RAM."""
    torch.manual_seed(seed)
    model = MLP(FEATURES, (16,), CLASSES)
    memory = ReservoirMemory(CAPACITY, path=path, seed=seed)
    return Replay(model, torch.optim.SGD(model.parameters(), lr=0.01), memory, RETRIEVALS[retrieval](), budget=4)


def taken(learner: Learner, steps: int, folder: Path) -> list[str]:
    """Take so many steps, and return what grew with them."""
    tenth = max(steps // 10, 1)
    first, last = np.zeros(tenth), np.zeros(tenth)
    for number in range(WARM):
        step(learner, number, folder)
    before = use(folder)
    for number in range(steps):
        seconds = step(learner, WARM + number, folder)
        if number < tenth:
            first[number] = seconds
        if number >= steps - tenth:
            last[number - steps] = seconds
    after = use(folder)
    failures = [f"{name} grew by {grown}" for name, grown in too_much(before.memory, after.memory).items()]
    if after.descriptors > before.descriptors:
        failures.append(f"{before.descriptors} files were open, {after.descriptors} are")
    if after.files > before.files:
        failures.append(f"there were {before.files} files, there are {after.files}")
    ratio = float(np.median(last) / np.median(first))
    if ratio > SLOWER:
        failures.append(f"the last steps took {ratio:.2f} times as long as the first")
    return failures


def step(learner: Learner, number: int, folder: Path) -> float:
    """Do what a service does; return the seconds of the processor that learning took."""
    x, y, task = STREAM[number % len(STREAM)]
    ids = range(len(y) * number, len(y) * (number + 1))
    started = time.thread_time()
    learner.observe(x, y, task, id=ids)
    seconds = time.thread_time() - started
    if number % PREDICTED == 0:
        learner.predict(x)
    if number % SAVED == SAVED // 2:
        rehearse.save(learner, folder / "checkpoint")
    if number % FORGOTTEN == FORGOTTEN // 2:
        learner.forget(ids=ids)
    return seconds


def use(folder: Path) -> Use:
    """Return what is in use."""
    return Use(memory_in_use(), len(os.listdir("/proc/self/fd")), len(os.listdir(folder)))
