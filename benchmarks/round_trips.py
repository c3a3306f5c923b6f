"""Whether AE's classifier tells old from new by how often a picture went through the autoencoder.

    REHEARSE_DATA=... python benchmarks/round_trips.py runs/KEY

Codes are brought up to date after each epoch, so that a memory has been decoded and encoded again once an epoch since
it was stored, while what arrives and what is tested has gone through once. Here the test images of each task seen so
far go through so many times, and then to the classifier of the run's checkpoint: how many are right, and how many are
taken for a class of the newest task. The run must be under way (a finished one has no checkpoint), and best between
two tasks: the classifier knows the autoencoder that it was trained with.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor

from rehearse.checkpoint import read_state
from rehearse.lab.experiment import Run
from rehearse.lab.spec import Spec
from rehearse.learners import AutoencoderReplay

TRIPS = (0, 1, 2, 5, 10, 20)
ROWS = 1000  # of a task: of its test images, and of its memories


def taken_up(folder: Path) -> Run:
    """The run where its checkpoint left it."""
    run = Run(Spec.from_dict(json.loads((folder / "spec.json").read_text("utf-8"))))
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        raise SystemExit(
            f"{folder} has no checkpoint: a run has one as long as it is under way, a finished one does not"
        )
    run.load(read_state(checkpoint)["run"])
    return run


def judged(learner: AutoencoderReplay, x: Tensor, y: Tensor, newest: Tensor) -> str:
    """Of inputs that the classifier sees as they are here."""
    predicted = learner.predict(x)
    right, new = (predicted == y).double().mean().item(), torch.isin(predicted, newest).double().mean().item()
    return f"{100 * right:.0f} ({100 * new:.0f})"


def table(run: Run) -> list[str]:
    learner, task = run.learner, run.learner.task
    assert isinstance(learner, AutoencoderReplay)
    assert task is not None
    learner.autoencode_test = False  # as often as is said here, and no more
    tests, stored = run.stream.evaluation["test"], learner.memory.get(learner.memory.slots())
    newest = tests[task].y.unique()
    lines = [
        f"{run.spec.method}, {run.spec.capacity:,} codes, seed {run.spec.seed}, after batch {run.position}: per cent "
        "right (taken for a class of the newest task)",
        "",
        f"| task | {' | '.join(str(trips) for trips in TRIPS)} | its memories |",
        "|---|" + "--:|" * (len(TRIPS) + 1),
    ]
    for number in range(task + 1):
        rows = tests[number].take(torch.arange(min(ROWS, len(tests[number]))))
        x, cells = learner._prepared(rows.x), []
        for trips in range(TRIPS[-1] + 1):
            if trips in TRIPS:
                cells.append(judged(learner, x, rows.y, newest))
            x = learner.codec.rebuild(x)
        held = stored.take((stored.task == number).nonzero().flatten()[:ROWS])
        cells.append(judged(learner, learner.codec.read(held.x), held.y, newest) if len(held) else "–")
        lines.append(f"| {number} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run that is under way")
    torch.set_num_threads(1)
    print("\n".join(table(taken_up(parser.parse_args().run))))


if __name__ == "__main__":
    main()
