"""How fast replay from a generator is: updates of classifier and generator per second, CPU seconds of a whole run.

    python benchmarks/generative.py [--write]                    steps on random images, interleaved with the textbook's
    REHEARSE_DATA=... python benchmarks/generative.py --whole    whole runs of GEN-MIR on the real stream, side by side

At the published settings of Split MNIST (500 batches, the first 100 without replay), on one thread. *Literal* is the
published program's step of `benchmarks/literal_generative.py`, in the same run on the same machine, in turns;
``--write`` puts the table into docs/performance-generative.md.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import statistics
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from rehearse.compute import native_bfloat16
from torch import Tensor

from elsewhere import Elsewhere
from literal_generative import SETTINGS, Literal
from measuring import seconds_here, with_part
from rehearse.lab.experiment import Settings, execute, spec_stream, with_precision
from rehearse.lab.methods import Problem, build, prepare_for, resolve
from rehearse.lab.networks import make_network
from rehearse.lab.spec import Spec, load_spec_values
from rehearse.learners import GenerativeReplay

SHAPE, CLASSES, BATCH = (1, 28, 28), 10, 10
TASKS, BATCHES_PER_TASK = 5, 100
PAGE = Path(__file__).parents[1] / "docs" / "performance-generative.md"
INTRODUCTION = """# Performance of replay from a generator

Made by `python benchmarks/generative.py --write`; do not edit. CPU seconds at the published settings of Split MNIST,
one thread, steps of ours and of the textbook (`benchmarks/literal_generative.py`, in a process of its own, where
nothing of the library is at work) interleaved within one run. A run is reckoned as 100 batches without replay and 400
with it, without evaluation. There is one part for each kind of processor that has been at hand.
"""


def spec_of(name: str) -> Spec:
    """A method's settings for Split MNIST, or a named spec's."""
    if name in ("gen", "gen-mir"):
        return resolve(name, "split-mnist")
    values = load_spec_values(name)
    return resolve(values["method"], "split-mnist", values)


def ours(name: str, precision: str) -> GenerativeReplay:
    spec = replace(spec_of(name), precision=precision)
    network = lambda: make_network(spec.network, classes=CLASSES, input_shape=SHAPE)  # noqa: E731
    learner = build(spec, Problem(CLASSES, TASKS, SHAPE, prepare_for("unit"), network))
    assert isinstance(learner, GenerativeReplay)
    return learner


def rows(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 256, (BATCH, *SHAPE), generator=generator, dtype=torch.uint8)
    return x, torch.randint(0, CLASSES, (BATCH,), generator=generator)


def measured(name: str, precision: str, repeats: int) -> str:
    """A row of the table."""
    learner, textbook = ours(name, precision), Elsewhere(Literal, SETTINGS[name])
    times: dict[tuple[str, int], list[float]] = {}
    for task in (0, 1):
        for repeat in range(-1, repeats):  # the first is for warming up
            x, y = rows(100 * task + repeat + 1)
            turns = {
                "ours": seconds_here(learner.observe, [(x, y, task)]),
                "literal": textbook.seconds([(x.float() / 255, y)]),
            }
            for who, seconds in turns.items():
                if repeat >= 0:
                    times.setdefault((who, task), []).append(seconds)
        textbook.seconds([()], "end_task")
    median = {key: statistics.median(values) for key, values in times.items()}
    run = {who: BATCHES_PER_TASK * (median[who, 0] + (TASKS - 1) * median[who, 1]) for who in ("ours", "literal")}
    ratios = sorted(b / a for a, b in zip(times["ours", 1], times["literal", 1], strict=True))
    low, _, high = statistics.quantiles(ratios, n=4)
    label = name if precision == "float32" else f"{name}, searching in bfloat16"
    return (
        f"| {label} | {learner.updates / median['ours', 1]:.0f} | {run['ours']:.0f} | {run['literal']:.0f} "
        f"| {run['literal'] / run['ours']:.1f} | {statistics.median(ratios):.1f} ({low:.1f} – {high:.1f}) |"
    )


def whole(name: str) -> str:
    """CPU seconds of one run of the textbook on the real stream, and of our runs while it lasts, on another core.

    What slows this machine for minutes slows both. Both evaluate after each task, on the validation and test sets: the
    textbook on those of the tasks seen, as the published program does, ours on all; ours choose their precision.
    """
    spec = with_precision(spec_of(name))
    stream = spec_stream(spec)
    tasks: dict[int, list[tuple[Tensor, Tensor]]] = {}
    for batch in stream.batches():
        tasks.setdefault(batch.task, []).append((batch.x.float() / 255, batch.y))
    sets = [[(part.x.float() / 255, part.y) for part in parts] for parts in stream.evaluation.values()]
    textbook = Elsewhere(Literal, SETTINGS[name])

    def learn() -> float:
        seconds = 0.0
        for task, batches in tasks.items():
            seconds += textbook.seconds(batches) + textbook.seconds([()], "end_task")
            seconds += sum(textbook.seconds(parts[: task + 1], "evaluate") for parts in sets)
        return seconds

    seconds = []
    with ThreadPoolExecutor(1) as beside:
        literal = beside.submit(learn)
        while not literal.done():
            seconds.append(execute(replace(spec, seed=len(seconds)), None, Settings())["cost"]["cpu_seconds"])
    theirs, ours = literal.result(), statistics.median(seconds)
    return (
        f"Whole runs of {name} on real Split MNIST, side by side on two cores, with evaluation: the textbook "
        f"{theirs:.0f} CPU s; ours, {spec.precision}, {min(seconds):.0f} to {max(seconds):.0f}, median {ours:.0f} of "
        f"{len(seconds)}: {theirs / ours:.1f} times fewer."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--whole", action="store_true", help="whole runs of GEN-MIR on the real data too")
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| method | updates a second, each network | CPU s a run, ours | literal | times fewer | a step with replay |",
        "|---|---|---|---|---|---|",
    ]
    for line in lines:
        print(line)
    rows_of = [(name, "float32") for name in SETTINGS]
    if native_bfloat16(torch.device("cpu")):
        rows_of.append(("gen-mir", "bfloat16-scoring"))
    for name, precision in rows_of:
        lines.append(measured(name, precision, arguments.repeats))
        print(lines[-1], flush=True)
    if arguments.whole:
        lines += ["", whole("gen-mir")]
        print(lines[-1], flush=True)
    if arguments.write:
        PAGE.write_text(with_part(PAGE, INTRODUCTION, lines), "utf-8")


if __name__ == "__main__":
    main()
