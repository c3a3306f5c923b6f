"""Learners of every method, killed with SIGKILL while they learn and save.

A child is forked from a process that has torch loaded, resumes from the last checkpoint, goes on, and is killed at a
random moment. Whatever was killed again and again must end bit for bit where an uninterrupted run ends.
"""

from __future__ import annotations

import gc
import inspect
import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from pathlib import Path
from typing import NamedTuple

from interrupting import state_of

import conftest
import rehearse
from conftest import METHODS, make, tiny_stream
from rehearse import Learner
from sameness import differences

from .dividing import divided
from .result import Result

EVERY = 2  # steps between two saves
STREAM = tiny_stream()


class Case(NamedTuple):
    """A method, and whether its memory is in a file."""

    method: str
    mapped: bool


def cases() -> list[Case]:
    """Return every method, and those whose memory may be in a file once more."""
    memories = {method: make(method).memory for method in METHODS}
    stored = {method: memory for method, memory in memories.items() if memory is not None}  # empty, and so false
    mapped = [method for method, memory in stored.items() if "path" in inspect.signature(type(memory)).parameters]
    assert mapped
    return [*(Case(method, False) for method in METHODS), *(Case(method, True) for method in mapped)]


def run(tries: int, seed: int) -> Result:
    """Kill learners so often, in all."""
    chance, failures, every = random.Random(seed), list[str](), cases()
    chance.shuffle(every)
    for method in METHODS:
        conftest.run(make(method), STREAM)  # torch loads parts of itself at first use: here, and not in every child
    gc.freeze()
    for case, kills in divided(tries, every):
        with tempfile.TemporaryDirectory() as folder:
            failures += [f"{case}: {failure}" for failure in torment(case, kills, Path(folder), chance)]
    return Result(tries, failures)


def torment(case: Case, kills: int, folder: Path, chance: random.Random) -> list[str]:
    """Kill a learner so often; return what was wrong afterwards."""
    for name in ("uninterrupted", "killed"):
        (folder / name).mkdir()
    started = time.perf_counter()
    expected = end(case, folder / "uninterrupted")
    duration, place = time.perf_counter() - started, folder / "killed"
    while kills:
        child = forked(case, place)
        time.sleep(chance.uniform(0, duration))
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            kills -= 1
        elif status:
            return [(place / "error").read_text("utf-8")]
        else:  # it was faster: what it saved last is compared, and all starts over
            found = differences(end(case, place), expected)
            if found:
                return found
            shutil.rmtree(place)
            place.mkdir()
    try:
        return differences(end(case, place), expected)
    except Exception:
        return [traceback.format_exc()]


def forked(case: Case, place: Path) -> int:
    """Return the process that resumes and learns, until it is killed or has come to the end."""
    child = os.fork()
    if child:
        return child
    try:
        learn(case, place)
    except BaseException:
        (place / "error").write_text(traceback.format_exc(), "utf-8")
        os._exit(1)
    os._exit(0)


def end(case: Case, place: Path) -> object:
    """Return the state at the end of the stream."""
    learner = learn(case, place)
    state = state_of(learner)
    if learner.memory is not None:
        learner.memory.close()
    return state


def learn(case: Case, place: Path) -> Learner:
    """Resume from the checkpoint, if there is one, and go on to the end of the stream; save as it goes."""
    learner, checkpoint = make(case.method), place / "checkpoint"
    if case.mapped:
        learner.memory.__init__(learner.memory.capacity, path=place / "samples")  # type: ignore[misc]
    if checkpoint.exists():
        rehearse.load(checkpoint, into=learner)
    for number in range(learner.samples_observed // len(STREAM[0][1]), len(STREAM)):
        conftest.run(learner, STREAM, number, number + 1, lambda *_: rehearse.save(learner, checkpoint))
        if number % EVERY == 0 or number + 1 == len(STREAM):
            rehearse.save(learner, checkpoint)
    return learner
