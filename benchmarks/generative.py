"""How fast replay from a generator is: updates of classifier and generator per second, CPU seconds of a whole run.

    python benchmarks/generative.py            a few steps on random images, the whole run reckoned from them
    REHEARSE_DATA=... python benchmarks/generative.py --whole    one whole run each, seed 0

At the published settings of Split MNIST (500 batches, the first 100 without replay), on one thread. The published
program takes 86 (GEN), 114 (GEN with GEN-MIR's settings) and 610 (GEN-MIR) CPU seconds on a core with AVX2.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch

from rehearse.experiment import Settings, execute
from rehearse.learners import GenerativeReplay
from rehearse.methods import Problem, build, prepare_for, resolve
from rehearse.nets import make_network
from rehearse.spec import Spec, load_spec_values

PUBLISHED_SECONDS = {"gen": 86, "gen-control": 114, "gen-mir": 610}
SHAPE, CLASSES, BATCH = (1, 28, 28), 10, 10
TASKS, BATCHES_PER_TASK = 5, 100
STEPS = 8


@dataclass(frozen=True)
class Speed:
    """What was measured for one method."""

    name: str
    updates_per_second: float  # of one network; classifier and generator take as many
    run_seconds: float
    published_seconds: float

    @property
    def ratio(self) -> float:
        """How many times fewer CPU seconds than the published program."""
        return self.published_seconds / self.run_seconds


def spec_of(name: str) -> Spec:
    """A method's settings for Split MNIST, or a named spec's."""
    if name in ("gen", "gen-mir"):
        return resolve(name, "split-mnist")
    values = load_spec_values(name)
    return resolve(values["method"], "split-mnist", values)


def reckoned(name: str, steps: int = STEPS) -> Speed:
    """From a few steps without replay and a few with it, on random images."""
    spec = spec_of(name)
    problem = Problem(
        CLASSES,
        TASKS,
        SHAPE,
        prepare_for("unit"),
        lambda: make_network(spec.network, classes=CLASSES, input_shape=SHAPE),
    )
    learner = build(spec, problem)
    assert isinstance(learner, GenerativeReplay)
    first, later = seconds_per_step(learner, 0, steps), seconds_per_step(learner, 1, steps)
    seconds = BATCHES_PER_TASK * (first + (TASKS - 1) * later)
    return Speed(name, learner.updates / later, seconds, PUBLISHED_SECONDS[name])


def seconds_per_step(learner: GenerativeReplay, task: int, steps: int) -> float:
    generator = torch.Generator().manual_seed(task)
    for step in range(steps + 1):
        if step == 1:  # the first is for warming up
            started = time.process_time()
        x = torch.randint(0, 256, (BATCH, *SHAPE), generator=generator, dtype=torch.uint8)
        learner.observe(x, torch.randint(0, CLASSES, (BATCH,), generator=generator), task)
    return (time.process_time() - started) / steps


def whole(name: str) -> Speed:
    """One run of the real stream, evaluation included."""
    spec = spec_of(name)
    cost = execute(spec, None, Settings())["cost"]
    updates = (spec.updates or 1) * cost["steps_per_second"]
    return Speed(name, updates, cost["cpu_seconds"], PUBLISHED_SECONDS[name])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", action="store_true", help="whole runs on the real data instead of a reckoning")
    whole_runs = parser.parse_args().whole
    torch.set_num_threads(1)
    print("| method | updates per second | CPU s a run | published | times fewer |\n|---|---|---|---|---|")
    for name in PUBLISHED_SECONDS:
        speed = whole(name) if whole_runs else reckoned(name)
        print(
            f"| {name} | {speed.updates_per_second:.0f} | {speed.run_seconds:.0f} | {speed.published_seconds} "
            f"| {speed.ratio:.1f} |"
        )


if __name__ == "__main__":
    main()
