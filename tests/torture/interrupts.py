"""Exceptions at random lines of `observe` and `forget`, for every learner: the state before, or the state after."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from itertools import cycle, product
from pathlib import Path

from interrupting import Interruption, check
from small_learners import SETTINGS
from test_interrupted_calls import CALLS

from .result import Result

LINES = 7  # that are interrupted of one call, before the next learner's turn
INTERRUPTED = {"observe": lambda case: case.learner.observe(case.x, case.y, case.task), "forget": CALLS["forget"]}


def run(tries: int, seed: int) -> Result:
    """Raise so many exceptions."""
    chance, failures, done = random.Random(seed), list[str](), 0
    turns = list(product(SETTINGS, INTERRUPTED))
    chance.shuffle(turns)
    for name, call in cycle(turns):
        if done == tries:
            break
        with tempfile.TemporaryDirectory() as folder:
            lines, problem = interrupted(name, call, min(LINES, tries - done), Path(folder), chance)
        done += lines
        failures += problem
    return Result(done, failures)


def interrupted(name: str, call: str, count: int, folder: Path, chance: random.Random) -> tuple[int, list[str]]:
    """Interrupt a call at so many lines; return how many they were, and what was wrong."""
    (folder / "first").mkdir()
    if call == "forget" and SETTINGS[name](folder / "first").learner.memory is None:
        return 0, []

    def choose(counted: Interruption) -> Sequence[int]:
        """Return lines half of which differ in what has called them, and half of which are any."""
        different = chance.sample(sorted(counted.first.values()), min(len(counted.first), (count + 1) // 2))
        return different + [chance.randint(1, counted.lines) for _ in range(count - len(different))]

    try:
        check(SETTINGS[name], folder, choose, INTERRUPTED[call])
    except Exception as problem:
        return count, [f"{call} of {name}: {type(problem).__name__}: {problem}"]
    return count, []
