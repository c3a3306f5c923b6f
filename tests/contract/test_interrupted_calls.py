"""An exception at any line of any other call that changes a learner leaves the state before or the state after too.

`REHEARSE_EVERY_LINE=1` tests every line, which takes hours; see test_interrupts.py.
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupting import SEED, Interruption, check, comparable, picture, state_of
from small_learners import CLASSES, SETTINGS, Case, batch
from torch import Tensor

import rehearse
from rehearse import Batch, Learner
from rehearse.errors import InvalidInput, RehearseError
from rehearse.learners import ICaRL
from sameness import assert_same, differences

EVERY_LINE = os.environ.get("REHEARSE_EVERY_LINE") == "1"
POINTS = 5  # of the other lines of each call
LEARNERS = [
    "replay mi2 ce sgd 1 chain",
    "replay mi2 der adam 2 norm published",
    "replay uniform ce momentum 2 dropout",
    "replay mi2, balanced memory, batch 4",
    "replay mi2, mapped memory, batch 4",
    "strong replay mi1, every second momentum 2 norm clean",
    "Finetune adam 1 chain",
    "AGEM adam 2 norm",
    "GEM momentum 1 chain",
    "GDumb sgd norm 4",
    "GDumb adam norm 4",
    "ICaRL memory momentum 1 norm 3",
    "ICaRL task sgd 2 chain 3",
    "GenerativeReplay stale adam 2",
    "CodeReplay True False adam 2",
    "CodeReplay, bytes",
]


def half(held: Batch) -> Tensor:
    """Return a predicate that holds for some of the samples of every learner."""
    return held.y % 2 == 0


def remember(case: Case) -> int:
    return case.learner.remember([(case.x, case.y, case.task)])


CALLS: dict[str, Callable[[Case], Any]] = {
    "forget": lambda case: case.learner.forget(predicate=half),
    "grow": lambda case: case.learner.grow(CLASSES + 3),
    "remember": remember,
    "end_task": lambda case: case.learner.end_task(),
    "to": lambda case: case.learner.to("cpu"),
}


def setting(name: str, call: str) -> Callable[[Path], Case]:
    def make(folder: Path) -> Case:
        case = SETTINGS[name](folder)
        if isinstance(case.learner, ICaRL) and call == "remember":
            case.learner.end_task()
        return case

    return make


def refused(case: Case, call: Callable[[Case], Any]) -> bool:
    """Whether this learner does not have the call, and says so before it changes anything."""
    before = picture(case.learner)
    try:
        call(case)
    except RehearseError:
        assert_same(picture(case.learner), before)
        return True
    return False


def some(counted: Interruption) -> Sequence[int]:
    """Return all lines of the call itself and of what it calls, where one change may follow another; else a part."""
    if EVERY_LINE:
        return range(1, counted.lines + 1)
    shallow = {line for stack, line in counted.first.items() if len(stack) <= 4}
    others = sorted({*counted.first.values()} - shallow)
    return sorted({*shallow, *others[:: max(len(others) // POINTS, 1)]})


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", LEARNERS)
def test_the_state_before_or_the_state_after(name: str, call: str, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    if refused(setting(name, call)(tmp_path / "first"), CALLS[call]):
        return
    check(setting(name, call), tmp_path, some, CALLS[call])


def later_state(case: Case) -> dict[str, Any]:
    """Return a state that differs from the present one in everything, the size of the head included."""
    later = copy.deepcopy(case.learner)
    with contextlib.suppress(InvalidInput):  # no linear head
        later.grow(CLASSES + 2)
    for number in range(4, 8):
        later.observe(*batch(number))
    later.end_task()
    later.observe(*batch(8))
    return later.state_dict()


@pytest.mark.parametrize("name", [name for name in LEARNERS if "mapped" not in name])
def test_loading_a_state(name: str, tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    state = later_state(SETTINGS[name](tmp_path / "first"))
    check(SETTINGS[name], tmp_path, some, lambda case: case.learner.load_state_dict(state))


@pytest.mark.parametrize("name", ["replay mi2, mapped memory, batch 4", "CodeReplay, mapped memory"])
def test_loading_a_checkpoint_of_a_mapped_memory(name: str, tmp_path: Path) -> None:
    case, path, counted = SETTINGS[name](tmp_path), tmp_path / "checkpoint", Interruption()
    rehearse.save(case.learner, path)
    older = state_of(case.learner)
    case.learner.observe(case.x, case.y, case.task)
    newer = state_of(case.learner)
    counted(lambda: rehearse.load(path, into=case.learner))
    for line in some(counted):
        if not differences(state_of(case.learner), older):
            case.learner.observe(case.x, case.y, case.task)
        interruption = Interruption(line)
        interruption(lambda: rehearse.load(path, into=case.learner))
        now = state_of(case.learner)
        assert any(not differences(now, state) for state in (older, newer)), interruption.where
    rehearse.load(path, into=case.learner)
    assert_same(state_of(case.learner), older)


@pytest.mark.parametrize("name", LEARNERS)
def test_saving_changes_nothing_and_the_file_is_the_one_before_or_the_new_one(name: str, tmp_path: Path) -> None:
    def new(folder: str) -> tuple[Case, Path]:
        """Return a learner that was saved, and has observed a batch since."""
        (tmp_path / folder / "saved").mkdir(parents=True)
        case, path = SETTINGS[name](tmp_path / folder), tmp_path / folder / "saved" / "file"
        torch.manual_seed(SEED)
        rehearse.save(case.learner, path)
        return case, path

    case, path = new("counted")
    older, counted = state_of(case.learner), Interruption()
    case.learner.observe(case.x, case.y, case.task)
    newer = state_of(case.learner)
    counted(lambda: rehearse.save(case.learner, path))
    case, path = new("interrupted")
    for line in some(counted):
        if not differences(state_of(case.learner), older):
            case.learner.observe(case.x, case.y, case.task)
        before, interruption = picture(case.learner), Interruption(line)
        interruption(lambda: rehearse.save(case.learner, path))
        found = differences(picture(case.learner), before)
        assert not found, (interruption.where, found)
        assert [one.name for one in path.parent.iterdir()] == ["file"], interruption.where
        rehearse.load(path, into=case.learner)
        now = state_of(case.learner)
        assert any(not differences(now, state) for state in (older, newer)), interruption.where


@pytest.mark.parametrize("name", ["CodeReplay True True adam 1", "CodeReplay, bytes"])
def test_preparing_a_task_stops_between_two_steps_and_can_be_resumed(name: str, tmp_path: Path) -> None:
    first = SETTINGS[name](tmp_path).learner
    x = torch.cat([batch(number)[0] for number in range(20, 24)])
    data = Batch(x, torch.arange(len(x)) % CLASSES, 7)

    def new() -> Learner:
        torch.manual_seed(SEED)
        return copy.deepcopy(first)

    def prepare(learner: Learner, on_step: Any = None) -> None:
        learner.begin_task(data, 7, on_step)

    learner, counted = new(), Interruption()
    states = [comparable(picture(learner))]
    prepare(learner, lambda *_: states.append(comparable(picture(learner))))
    after = comparable(picture(learner))
    counting = new()
    counted(lambda: prepare(counting))
    assert len(states) > 3
    for line in some(counted):
        learner, interruption = new(), Interruption(line)
        interruption(lambda: prepare(learner))  # noqa: B023
        now = comparable(picture(learner))
        assert any(not differences(now, state) for state in (*states, after)), interruption.where
        prepare(learner)
        found = differences(comparable(picture(learner)), after)
        assert not found, (interruption.where, found)
