"""A forked child shares the file of a mapped memory with its parent: whatever it would do with it is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rehearse
from rehearse import Replay, ReservoirMemory
from rehearse.errors import InvalidInput, RehearseError

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded")


def in_child(call: Callable[[], Any]) -> str:
    """Return what a forked child says about a call: "done", or its error."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            call()
            said = "done"
        except RehearseError as problem:
            said = f"refused: {problem}"
        except BaseException as problem:
            said = repr(problem)
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with open(reader, encoding="utf-8") as pipe:
        return pipe.read()


def learner(path: Path | None) -> Replay:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    memory = ReservoirMemory(20, path=path)
    return Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), memory, batchnorm="recalibrated")


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    return torch.randn(6, 3, generator=generator), torch.randint(2, (6,), generator=generator)


def filled(path: Path | None) -> Replay:
    made = learner(path)
    for number in range(6):
        made.observe(*batch(number), id=[f"{number}-{i}" for i in range(6)])
    return made


def forget_in_journal(one: Replay) -> None:
    one.memory._index.clear(one.memory.slots().numpy())
    one.memory.forget(ids=["0-0"])


CALLS: dict[str, Callable[[Replay, Path], Any]] = {
    "observe": lambda one, _: one.observe(*batch(9), id=range(6)),
    "remember": lambda one, _: one.remember([batch(9)]),
    "forget": lambda one, _: one.forget(ids=["0-0", "1-1", "5-1"]),
    "forget slots": lambda one, _: one.forget(slots=[0, 1]),
    "predict": lambda one, _: one.predict(batch(9)[0]),
    "sample": lambda one, _: one.memory.sample(3),
    "all": lambda one, _: one.memory.all(),
    "add": lambda one, _: one.memory.add(*batch(9), id=range(6)),
    "save": lambda one, folder: rehearse.save(one, folder / "other"),
    "load": lambda one, folder: rehearse.load(folder / "checkpoint", into=one),
    "confirm": lambda one, _: one.memory.confirm({"file": {"generation": 1}}),
    "forget what only a journal holds": lambda one, _: forget_in_journal(one),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_child_is_refused_and_its_parent_sees_nothing_of_it(name: str, tmp_path: Path) -> None:
    parent, reference = filled(tmp_path / "samples"), filled(None)
    rehearse.save(parent, tmp_path / "checkpoint")
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    said = in_child(lambda: CALLS[name](parent, tmp_path))
    assert "refused" in said
    assert f"process {os.getpid()}" in said
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files
    for number in range(10, 13):
        for one in (parent, reference):
            one.observe(*batch(number), id=[f"{number}-{i}" for i in range(6)])
    mine, other = parent.memory.all(), reference.memory.all()
    assert torch.equal(mine.x, other.x)
    assert torch.equal(mine.columns["id"], other.columns["id"])


def test_a_first_batch_in_a_child_starts_a_file_of_the_childs(tmp_path: Path) -> None:
    """Nothing is shared before the file is open; the parent then finds the file taken, as from any other process."""
    made = learner(tmp_path / "samples")
    assert in_child(lambda: [made.observe(*batch(0)), rehearse.save(made, tmp_path / "checkpoint")]) == "done"
    with pytest.raises(InvalidInput, match="earlier run"):
        made.observe(*batch(0))
    rehearse.load(tmp_path / "checkpoint", into=made)
    assert len(made.memory) == 6


def test_a_child_with_a_predictor_or_a_file_of_its_own_is_not_refused(tmp_path: Path) -> None:
    parent = filled(tmp_path / "samples")
    predictor = parent.predictor()
    assert in_child(lambda: predictor.predict(batch(9)[0])) == "done"
    assert in_child(lambda: filled(tmp_path / "own")) == "done"


def test_the_lock_of_the_parent_outlives_a_child_that_closes_the_memory(tmp_path: Path) -> None:
    parent = filled(tmp_path / "samples")
    rehearse.save(parent, tmp_path / "checkpoint")
    assert in_child(parent.memory.close) == "done"
    with pytest.raises(RehearseError, match="in use by another memory"):
        rehearse.load(tmp_path / "checkpoint", into=learner(tmp_path / "samples"))
    parent.observe(*batch(9), id=range(6))
