"""Exceptions at chosen lines of the library, and everything that they must leave as it was."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from small_learners import Case, Setting

import rehearse
from conftest import world
from rehearse import Learner
from sameness import assert_same, differences, outside

SEED = 5  # of torch's global random state, which must not change
LIBRARY = str(Path(rehearse.__file__).parent)


class Interrupt(BaseException):
    """What is raised; like KeyboardInterrupt, no `except Exception` catches it."""


class Interruption:
    """Raises `Interrupt` at the line of this number that a call executes in the library; 0 only counts lines."""

    def __init__(self, number: int = 0) -> None:
        self.number, self.lines, self.where = number, 0, ""
        self.first: dict[tuple[Any, ...], int] = {}  # the number of the first line with this stack

    def __call__(self, call: Callable[[], Any]) -> bool:
        """Return whether the call raised. An exception in a generator that is being closed does not leave the call."""
        with _silent_generators():
            sys.settrace(self._enter)
            try:
                call()
            except Interrupt:
                return True
            finally:
                sys.settrace(None)
        return False

    def _enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(LIBRARY) else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.lines += 1
            if not self.number:
                self.first.setdefault(_stack(frame), self.lines)
            if self.lines == self.number:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} in {frame.f_code.co_name}"
                raise Interrupt
        return self._line


def _stack(frame: FrameType | None) -> tuple[Any, ...]:
    found = []
    while frame is not None:
        if frame.f_code.co_filename.startswith(LIBRARY):
            found += [frame.f_code, frame.f_lineno]
        frame = frame.f_back
    return tuple(found)


@contextmanager
def _silent_generators() -> Iterator[None]:
    own, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        yield
    finally:
        sys.unraisablehook = own


def picture(learner: Learner) -> dict[str, Any]:
    """Return everything that an interrupted call must leave as it was."""
    models = [network.model for network in learner._networks()]
    memory = learner.memory
    return {
        "state": state_of(learner),
        "outside": [outside(model) for model in models],
        "objects": [[id(tensor) for tensor in (*model.parameters(), *model.buffers())] for model in models],
        "grads": [[id(parameter.grad) for parameter in model.parameters()] for model in models],
        "forwards": [[name for name, module in model.named_modules() if "forward" in vars(module)] for model in models],
        "world": world(),
        "counts": None if memory is None else (len(memory), memory.seen),
    }


def state_of(learner: Learner) -> dict[str, Any]:
    """Return everything that a checkpoint holds, the samples included."""
    mapped = learner.memory is not None and learner.memory._rows.file is not None
    return contents(learner) if mapped else learner.state_dict()


def contents(learner: Learner) -> dict[str, Any]:
    """Return the state of a learner whose memory is in a file, with the samples in place of a reference to the file."""
    memory = learner.memory
    assert memory is not None
    memory.present_state = dict  # type: ignore[method-assign]  # in place of a reference to the file
    try:
        state = learner.state_dict()
    finally:
        del memory.present_state
    held = memory.all() if len(memory) else None
    facts = {name: (fill, fact.clone()) for name, (fill, fact) in memory._facts.items()}
    index = {name: torch.as_tensor(value) for name, value in memory._index.state().items()}
    samples = None if held is None else (held.x, held.y, held.task, held.slots, dict(held.columns))
    random = [str(generator.bit_generator.state) for generator in (memory._insertion, memory._sampling)]
    return state | {"memory": (samples, facts, index, random, memory._policy_state())}


class Subject:
    """A learner before a batch, as often as it is needed; samples in a file cannot be copied."""

    def __init__(self, setting: Setting, folder: Path) -> None:
        self.setting, self.folder, self.made = setting, folder, 0
        self.first = self._make()
        self.mapped = self.first.learner.memory is not None and self.first.learner.memory._rows.file is not None

    def _make(self) -> Case:
        self.made += 1
        folder = self.folder / str(self.made)
        folder.mkdir()
        return self.setting(folder)

    def new(self) -> Case:
        case = self._make() if self.mapped else self.first._replace(learner=copy.deepcopy(self.first.learner))
        torch.manual_seed(SEED)
        return case


def comparable(picture: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a picture that are the same for every copy of a learner."""
    return {name: part for name, part in picture.items() if name not in ("objects", "grads")}


def observe(case: Case) -> Any:
    return case.learner.observe(case.x, case.y, case.task)


def check(
    setting: Setting,
    folder: Path,
    choose: Callable[[Interruption], Sequence[int]],
    call: Callable[[Case], Any] = observe,
    follow: int = 5,
) -> int:
    """Raise at the chosen lines of a call; after every ``follow``-th of them it is made again, and must succeed."""
    subject = Subject(setting, folder)
    case, counted = subject.new(), Interruption()
    counted(lambda: call(case))
    case = subject.new()
    before = comparable(picture(case.learner))
    call(case)
    after, used = comparable(picture(case.learner)), True
    lines = choose(counted)
    for turn, line in enumerate(lines):
        if used:
            case = subject.new()
            own = picture(case.learner)
            assert_same(comparable(own), before)
        interruption, learner = Interruption(line), case.learner
        interruption(lambda: call(case))  # noqa: B023
        now = picture(learner)
        assert (now["objects"], now["grads"]) == (own["objects"], own["grads"]), interruption.where
        used = not differences(comparable(now), after)
        if not used:
            assert not differences(comparable(now), before), (interruption.where, differences(comparable(now), before))
            if turn % follow == 0:
                torch.manual_seed(SEED)
                call(case)
                found = differences(comparable(picture(learner)), after)
                assert not found, (interruption.where, found)
                used = True
    return len(lines)
