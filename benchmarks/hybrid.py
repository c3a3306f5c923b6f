"""How fast the hybrid is: the autoencoder's step and the classifier's apart, against the paper's program.

    python benchmarks/hybrid.py [--repeats 5] [--write]

At the published settings of Split CIFAR-10 with 1,000 codes, on one thread, on random images; ours and the literal
version (literal_hybrid.py, in a process of its own) take turns, and a ratio is one of the same turn. ``--write`` puts
the table into docs/performance-hybrid.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rehearse.compute import native_bfloat16, prepare_symmetric
from rehearse.kernels.library import SWITCH
from rehearse.learners.hybrid_codes import read_ahead
from torch import Tensor

from elsewhere import Elsewhere
from literal_hybrid import LiteralHybrid
from measuring import seconds_here, with_part
from rehearse import Batch
from rehearse.lab.methods import Problem, build, prepare_for, resolve
from rehearse.lab.networks import make_network
from rehearse.learners import AutoencoderReplay
from rehearse.nets import ConvAutoencoder, ReducedResNet18

SHAPE, CLASSES, ROWS, CODES = (3, 32, 32), 10, 10, 1000
TASKS, BATCHES, EPOCHS = 5, 975, 5
MORE = 5  # times as many steps of the autoencoder in a turn: they are short, and the first of a turn finds cold caches
Turn = Callable[[int], float]  # so many steps, and the CPU seconds that they take
PAGE = Path(__file__).parents[1] / "docs" / "performance-hybrid.md"
INTRODUCTION = """# Performance of replay from codes

Made by `python benchmarks/hybrid.py --write`; do not edit. CPU time at the published settings of Split CIFAR-10 with
1,000 codes, one thread, on random images, steps of ours and of a literal version of the published program
(`benchmarks/literal_hybrid.py`, in a process of its own, float32) interleaved within one run; the ratio is the median
of those within a turn, with the lowest and the highest. A step and a task are those with memories. A run is reckoned
from the steps: 975 batches a task, the first of five tasks without memories, and no evaluation. The literal version
trains the autoencoder in four epochs, and in the fifth inside the classifier's step; ours in five, before. What ours
does once an epoch, reading codes ahead and bringing them up to date, is in no row; nor is the latter for the literal
version. *By torch's kernels* is ours with `REHEARSE_KERNELS=torch`, in a process of its own too
([decision 0046](decisions/0046-kernels-of-our-own.md)). There is one part for each kind of processor that has been at
hand.
"""


def images(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (rows, *SHAPE), dtype=torch.uint8, generator=generator)
    return x, torch.randint(0, CLASSES, (rows,), generator=generator)


class Ours:
    """The learner of the package in its first task, or with a full memory of it; and what its steps are."""

    def __init__(self, method: str, precision: str, full: bool) -> None:
        options = {"capacity": CODES, "precision": precision, "options": {"autoencoder_epochs": 1}}
        spec = resolve(method, "split-cifar10", options)
        problem = Problem(
            CLASSES,
            TASKS,
            SHAPE,
            prepare_for("symmetric"),
            lambda: make_network(spec.network, classes=CLASSES, input_shape=SHAPE),
        )
        learner = build(spec, problem)
        assert isinstance(learner, AutoencoderReplay)
        self.learner, self.task = learner, 1 if full else 0
        x, y = images(CODES, 0)
        learner.begin_task(Batch(x[:ROWS], y[:ROWS], 0), 0)
        learner.observe(x[:ROWS], y[:ROWS], 0)
        if full:
            learner.remember([(x, y, 0)])
            learner.end_task()
            learner.begin_task(Batch(x[:ROWS], y[:ROWS], 1), 1)
        self.slots = learner.memory.slots(exclude_task=self.task)
        self.read = read_ahead(learner.codec, learner.memory, self.slots, CODES)

    def autoencoder_step(self, x: Tensor) -> None:
        self.learner.coded.train(self.learner._prepared(x), self.slots, self.read)

    def classifier_step(self, x: Tensor, y: Tensor) -> None:
        self.learner.observe(x, y, self.task)


def by_torchs_kernels(method: str, precision: str, full: bool) -> Elsewhere:
    """Ours in a process that does without kernels of its own."""
    os.environ[SWITCH] = "torch"
    try:
        return Elsewhere(Ours, method, precision, full)
    finally:
        del os.environ[SWITCH]


def literal(search: bool) -> LiteralHybrid:
    torch.manual_seed(0)
    model, autoencoder = ReducedResNet18(CLASSES), ConvAutoencoder(SHAPE)
    with torch.no_grad():
        codes = autoencoder.encode(torch.rand(CODES, *SHAPE) * 2 - 1)
    return LiteralHybrid(model, autoencoder, codes, images(CODES, 1)[1], torch.zeros(CODES, dtype=torch.long), search)


@dataclass(frozen=True)
class Seconds:
    """CPU seconds of a step, by turn: with memories, and without (the first task)."""

    later: list[float]
    first: list[float]

    def of_run(self, steps: int, turn: int) -> float:
        """So many steps a task."""
        return steps * ((TASKS - 1) * self.later[turn] + self.first[turn])


def measured(turns: dict[str, Turn], repeats: int, steps: int) -> dict[str, list[float]]:
    """Every one takes its turn in every repeat, so that what disturbs the machine disturbs them alike."""
    values: dict[str, list[float]] = {name: [] for name in turns}
    for repeat in range(-1, repeats):
        for name, turn in turns.items():
            taken = steps * MORE if "autoencoder" in name else steps
            seconds = turn(taken)
            if repeat >= 0:  # the first warms up
                values[name].append(seconds / taken)
    return values


def here(step: Callable[..., None], batch: tuple[Any, ...]) -> Turn:
    return lambda steps: seconds_here(step, [batch] * steps)


def elsewhere(subject: Elsewhere, step: str, batch: tuple[Any, ...]) -> Turn:
    return lambda steps: subject.seconds([batch] * steps, step)


def compare(method: str, precision: str, repeats: int, steps: int) -> list[str]:
    """The rows of the table."""
    theirs = Elsewhere(literal, search=method == "ae-mir")
    x, y = images(ROWS, 2)
    real = prepare_symmetric(x)
    turns: dict[str, Turn] = {}
    for when, task in (("later", 1), ("first", 0)):
        ours, plain = Ours(method, precision, when == "later"), by_torchs_kernels(method, precision, when == "later")
        for what, batch, literally in (
            ("autoencoder", (x,), "training_epoch_step"),
            ("classifier", (x, y), "last_epoch_step"),
        ):
            step = f"{what}_step"
            turns[f"ours {what} {when}"] = here(getattr(ours, step), batch)
            turns[f"plain {what} {when}"] = elsewhere(plain, step, batch)
            turns[f"literal {what} {when}"] = elsewhere(theirs, literally, (real, y, task))
    times = measured(turns, repeats, steps)
    seconds = {
        (who, what): Seconds(times[f"{who} {what} later"], times[f"{who} {what} first"])
        for who in ("ours", "literal", "plain")
        for what in ("autoencoder", "classifier")
    }
    runs: dict[str, list[float]] = {"ours": [], "literal": [], "plain": []}
    for turn in range(repeats):
        # the literal fifth epoch has the autoencoder's step inside its classifier's
        for who, epochs in (("ours", EPOCHS), ("literal", EPOCHS - 1), ("plain", EPOCHS)):
            autoencoder = seconds[who, "autoencoder"].of_run(epochs * BATCHES, turn)
            runs[who].append(autoencoder + seconds[who, "classifier"].of_run(BATCHES, turn))
    start, lines = f"| {method} | {precision} |", []
    for what, epochs in (("autoencoder", (EPOCHS, EPOCHS - 1)), ("classifier", (1, 1))):
        mine, other = seconds["ours", what].later, seconds["literal", what].later
        one, two = _middle(mine), _middle(other)
        lines.append(f"{start} {what}, a step | {one * 1e3:.1f} ms | {two * 1e3:.1f} ms | {_ratio(other, mine)} |")
        tasks = [[each * epoch * BATCHES for each in ours] for ours, epoch in zip((mine, other), epochs, strict=True)]
        one, two = map(_middle, tasks)
        lines.append(f"{start} {what}, a task | {one:.0f} s | {two:.0f} s | {_ratio(tasks[1], tasks[0])} |")
    other = runs["literal"]
    for what, mine in (("a run", runs["ours"]), ("a run, by torch's kernels", runs["plain"])):
        lines.append(f"{start} {what} | {_middle(mine):.0f} s | {_middle(other):.0f} s | {_ratio(other, mine)} |")
    return lines


def _middle(seconds: list[float]) -> float:
    return statistics.median(seconds)


def _ratio(above: list[float], below: list[float]) -> str:
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} – {max(ratios):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2, help="of the classifier in a turn")
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    lines = ["| method | precision | | ours | literal | times fewer |", "|---|---|---|---|---|---|"]
    print("\n".join(lines))
    for precision in ("float32", *(["bfloat16"] if native_bfloat16(torch.device("cpu")) else [])):
        for method in ("ae", "ae-mir"):
            rows = compare(method, precision, chosen.repeats, chosen.steps)
            print("\n".join(rows), flush=True)
            lines += rows
    if chosen.write:
        PAGE.write_text(with_part(PAGE, INTRODUCTION, lines), "utf-8")


if __name__ == "__main__":
    main()
