"""An exception at any line of `observe` leaves the state before or the state after, bit for bit.

A trace function raises at chosen lines of the library: at every line with a stack of its own for some learners, at a
part of them for others. ``REHEARSE_EVERY_LINE=1`` tests every line of every learner, which takes hours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupting import SEED, Interruption, check, contents, picture
from small_learners import BY_THEMSELVES, SETTINGS, Case, batch

import rehearse
from rehearse import Learner, ReservoirMemory
from rehearse.memory.mapped import MappedFile
from sameness import assert_same, differences

EVERY_LINE = os.environ.get("REHEARSE_EVERY_LINE") == "1"
CORE = {
    "replay mi2 ce sgd 1 chain": 1,
    "replay mi2 der adam 2 norm published": 5,
    "replay uniform ce momentum 2 dropout": 4,
    "replay mi2, balanced memory, batch 4": 4,
    "replay, scaled": 5,
    "replay mi2, mapped memory, batch 0": 4,
    "strong replay mi1, every second adam 2 norm joint": 7,
    "AGEM adam 2 norm": 5,
    "GEM sgd 1 chain": 4,
    "ICaRL memory momentum 1 norm 3": 9,
    "ICaRL task sgd 2 chain 3": 9,
    "GenerativeReplay stale adam 2": 17,
    "GenerativeReplay mir sgd 1": 17,
    "CodeReplay True False adam 2": 29,
    "CodeReplay, bytes": 29,
}
"""Settings and every how many of their lines are tested."""
LISTED = [name for name in SETTINGS if name not in CORE and name not in BY_THEMSELVES]
OTHERS = [*LISTED[:: 1 if EVERY_LINE else 11], *BY_THEMSELVES]
POINTS = 12  # lines of each of the others


@pytest.mark.parametrize("name", CORE)
def test_an_exception_at_any_line_leaves_the_state_before_or_after(name: str, tmp_path: Path) -> None:
    every = 1 if EVERY_LINE else CORE[name]
    assert check(SETTINGS[name], tmp_path, lambda counted: sorted(counted.first.values())[::every]) > 20


@pytest.mark.parametrize("name", OTHERS)
def test_an_exception_at_some_lines_leaves_the_state_before_or_after(name: str, tmp_path: Path) -> None:
    def choose(counted: Interruption) -> Sequence[int]:
        if EVERY_LINE:
            return range(1, counted.lines + 1)
        step = counted.lines // POINTS
        return range(1 + OTHERS.index(name) % step, counted.lines + 1, step)

    check(SETTINGS[name], tmp_path, choose)


@pytest.mark.parametrize("grad", [True, False])
def test_users_gradients_and_modes_survive(grad: bool, tmp_path: Path) -> None:
    def setting(folder: Path) -> Case:
        case = SETTINGS["replay mi2 ce momentum 2 norm clean"](folder)
        for parameter in case.learner.model.parameters():
            parameter.grad = torch.full_like(parameter, 7.0)
        case.learner.model.eval()
        return case

    with torch.set_grad_enabled(grad):
        check(setting, tmp_path, lambda counted: range(1, counted.lines + 1, 1 if EVERY_LINE else 29))


@pytest.mark.parametrize("name", ["replay mi2, mapped memory, batch 4", "CodeReplay, mapped memory"])
def test_a_checkpoint_of_a_mapped_memory_survives(name: str, tmp_path: Path) -> None:
    case = SETTINGS[name](tmp_path)
    rehearse.save(case.learner, tmp_path / "checkpoint")
    saved = contents(case.learner)
    counted = Interruption()
    counted(lambda: case.learner.observe(case.x, case.y, case.task))
    for line in range(7, counted.lines, 1 if EVERY_LINE else counted.lines // 12):
        rehearse.load(tmp_path / "checkpoint", into=case.learner)
        assert_same(contents(case.learner), saved)
        Interruption(line)(lambda: case.learner.observe(case.x, case.y, case.task))
    rehearse.load(tmp_path / "checkpoint", into=case.learner)
    assert_same(contents(case.learner), saved)


LOOKS: dict[str, Callable[[Learner], Any]] = {
    "predict": lambda learner: learner.predict(batch(9)[0]),
    "diagnose": lambda learner: asdict(learner.diagnose(*batch(9)[:2])),
}


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize(
    "name", ["replay mi2 ce adam 1 dropout", "replay mi2 ce sgd 1 norm auto", "ICaRL task sgd 2 chain 3"]
)
def test_an_exception_at_any_line_of_a_look_changes_nothing(name: str, look: str, tmp_path: Path) -> None:
    learner, counted = SETTINGS[name](tmp_path).learner, Interruption()
    torch.manual_seed(SEED)
    before = picture(learner)
    counted(lambda: LOOKS[look](learner))
    assert_same(picture(learner), before)
    expected = LOOKS[look](learner)
    for line in sorted(counted.first.values())[:: 1 if EVERY_LINE else 4]:
        interruption = Interruption(line)
        interruption(lambda: LOOKS[look](learner))
        found = differences(picture(learner), before)
        assert not found, (interruption.where, found)
    assert_same(LOOKS[look](learner), expected)


def test_an_interrupt_at_any_line_of_opening_leaves_no_lock(tmp_path: Path) -> None:
    """The batch is observed again after every line of starting the file."""

    def starting(counted: Interruption) -> Sequence[int]:
        return sorted(line for stack, line in counted.first.items() if MappedFile.start.__code__ in stack)

    assert check(SETTINGS["replay mi2, mapped memory, batch 0"], tmp_path, starting, follow=1) > 50


def test_an_interrupt_at_any_line_of_loading_leaves_no_lock(tmp_path: Path) -> None:
    memory = ReservoirMemory(20, path=tmp_path / "samples")
    memory.add(torch.arange(20.0), torch.arange(20))
    state, counted = memory.state_dict(), Interruption()
    memory.close()
    counted(lambda: memory.load_state_dict(state))
    memory.close()
    for line in sorted(counted.first.values()):
        interruption = Interruption(line)
        interruption(lambda: ReservoirMemory(20, path=tmp_path / "samples").load_state_dict(state))
        memory.load_state_dict(state)
        assert memory.all().y.tolist() == list(range(20)), interruption.where
        memory.close()
