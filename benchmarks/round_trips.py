"""Whether AE's classifier distinguishes old from new by how often an image passed the autoencoder.

    REHEARSE_DATA=... python benchmarks/round_trips.py runs/KEY

Codes are updated after each epoch, so a stored sample has been decoded and encoded once for each epoch since it was
stored, while incoming and test samples pass once. Here the test images of each task so far pass a number of times, and
then the classifier of the run's checkpoint: how many are classified correctly, and how many as a class of the newest
task. The run must be in progress (a finished one has no checkpoint), best between two tasks: the classifier knows the
autoencoder that it was trained with.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from rehearse import CodeReplay
from rehearse.checkpoint import read_state
from rehearse.lab.experiment import Run
from rehearse.lab.spec import Spec

TRIPS = (0, 1, 2, 5, 10, 20)
SAMPLES = 1000  # of each task: test images, and stored samples


def resumed(folder: Path) -> Run:
    """Return the run as its checkpoint left it."""
    checkpoint = folder / "checkpoint"
    if not checkpoint.exists():
        raise SystemExit(f"{folder} has no checkpoint: only a run in progress has one")
    run = Run(Spec.from_dict(json.loads((folder / "spec.json").read_text("utf-8"))))
    run.load(read_state(checkpoint)["run"])
    return run


def table(run: Run) -> Iterator[str]:
    """Yield the rows of the table."""
    learner = run.learner
    if not isinstance(learner, CodeReplay) or learner.task is None:
        raise SystemExit(f"a run of {run.spec.method} after batch {run.position} has no codes")
    learner.autoencode_test = False  # images pass the autoencoder here, and nowhere else
    tests, stored = run.stream.evaluation["test"], learner.memory.get(learner.memory.slots())
    newest = tests[learner.task].y.unique()

    def judged(x: Tensor, y: Tensor) -> str:
        predicted = learner.predict(x)
        correct, new = (hits.double().mean().item() for hits in (predicted == y, torch.isin(predicted, newest)))
        return f"{100 * correct:.0f} ({100 * new:.0f})"

    yield f"{run.spec.method}, {run.spec.capacity:,} codes, seed {run.spec.seed}, after batch {run.position}:"
    yield "per cent classified correctly (as a class of the newest task)\n"
    yield f"| task | {' | '.join(map(str, TRIPS))} | its stored samples |\n|---|{'--:|' * (len(TRIPS) + 1)}"
    for task in range(learner.task + 1):
        samples = tests[task].take(torch.arange(min(SAMPLES, len(tests[task]))))
        x, cells = learner.network.prepare(samples.x), []
        for trips in range(TRIPS[-1] + 1):
            if trips in TRIPS:
                cells.append(judged(x, samples.y))
            x = learner.codec.rebuild(x)
        held = stored.take((stored.task == task).nonzero().flatten()[:SAMPLES])
        cells.append(judged(learner.codec.read(held.x), held.y) if len(held) else "–")
        yield f"| {task} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table of a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="the folder of a run that is in progress")
    torch.set_num_threads(1)
    print("\n".join(table(resumed(parser.parse_args().run))))


if __name__ == "__main__":
    main()
