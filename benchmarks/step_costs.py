"""Measure what a training step costs in each cell of `strong-retrieval` and `strong-waiting`, in steps of plain replay.

    python benchmarks/step_costs.py split-cifar10 --precision bfloat16

src/rehearse/lab/paper/strong.toml has its outcome: which replayed batches cost the same, and what a step of each method
costs on a stream that does not wait. Inputs are random, the memory is full, one thread; the fastest round counts.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from math import inf

import torch

from rehearse.lab.methods import Problem, build, prepare_for, resolve
from rehearse.lab.networks import make_network
from rehearse.lab.paper.strong import STREAMS
from rehearse.lab.paper.targets import STRONG
from rehearse.lab.spec import Spec
from rehearse.learners import Learner

SHAPES = {"split-cifar10": (3, 32, 32), "split-mnist": (28, 28)}


def cells(stream: str, precision: str) -> dict[str, Spec]:
    """What to measure, by what it is called; the first is plain replay."""
    found = {"er": resolve("er", stream)}
    for name in (f"strong-retrieval-{stream}", f"strong-waiting-{stream}"):
        for entry in STRONG[name].entries:
            found.setdefault(f"{entry.row}, {entry.column}", dataclasses.replace(entry.spec(), step_cost=None))
    named: dict[str, tuple[str, Spec]] = {}
    for name, spec in found.items():
        spec = dataclasses.replace(spec, precision=precision)
        named.setdefault(spec.key, (name, spec))
    return dict(named.values())


def batch(shape: tuple[int, ...], size: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randint(0, 256, (size, *shape), dtype=torch.uint8), torch.randint(0, 10, (size,))


def made(spec: Spec, shape: tuple[int, ...]) -> Learner:
    """A learner whose memory is full of samples of an earlier task."""
    network = lambda: make_network(spec.network, classes=10, input_shape=shape)  # noqa: E731
    learner = build(spec, Problem(10, 5, shape, prepare_for("unit"), network))
    learner.remember((*batch(shape), 0) for _ in range((spec.capacity or 0) // 10))
    learner.observe(*batch(shape), task=1)
    return learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream", choices=[name for name in STREAMS if "waiting" in STREAMS[name]])
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    shape = SHAPES[asked.stream]
    learners = {name: made(spec, shape) for name, spec in cells(asked.stream, asked.precision).items()}
    best = dict.fromkeys(learners, inf)
    for _ in range(asked.rounds):
        batches = [batch(shape) for _ in range(asked.steps)]
        for name, learner in learners.items():
            started = time.process_time()
            for x, y in batches:
                learner.observe(x, y, task=1)
            best[name] = min(best[name], (time.process_time() - started) / asked.steps)
    for name, seconds in best.items():
        print(f"{seconds / best['er']:6.2f}  {1000 * seconds:8.2f} ms  {name}")


if __name__ == "__main__":
    main()
