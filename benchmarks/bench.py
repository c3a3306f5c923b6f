"""How fast a step is: ``make bench``. Prints ratios and writes this processor's part of docs/performance.md.

One thread, CPU time, every comparison interleaved within one run; the numbers in brackets are the quartiles over
repeats. ``--quick`` takes a few repeats, leaves torch.compile out and writes nothing.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from rehearse.compiled import compiler_at_hand

from elsewhere import Elsewhere
from measuring import Times, batches, interleaved, with_part
from rehearse.errors import RehearseError
from rehearse.lab.experiment import Settings, execute
from rehearse.lab.methods import resolve
from rehearse.retrieval import MostInterfered, Uniform
from subjects import CANDIDATES, er, er_mir, literal_step, matrix_products, phases

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
INTRODUCTION = """# Performance

Made by `make bench`; do not edit. Ratios of CPU time a step within one run: one thread, interleaved repeats, the median
and in brackets the quartiles over repeats. Incoming batch 10, budget 10, 50 candidates, memory of 500 unless said
otherwise. *Literal* is the textbook step of `benchmarks/literal.py`: deep copy, flattened gradients, a mask over the
whole memory, float32, torch's default layout; it takes its turns in a process of its own, where nothing of the library
is at work. There is one part for each kind of processor that has been at hand.
"""


@dataclass(frozen=True)
class Line:
    """A row of the table: what is compared, what came out, and what is asked for."""

    what: str
    value: str
    wanted: str = ""


@dataclass(frozen=True)
class Effort:
    """How long to measure: repeats, and steps in each of them."""

    repeats: int
    steps: int


def against_each_other(kind: str, effort: Effort, *, compiled: bool) -> Iterator[Line]:
    """Ours against the literal step, ER-MIR against ER, and each fast path on and off."""
    subjects = {
        "literal ER": Elsewhere(literal_step, kind, mir=False),
        "literal ER-MIR": Elsewhere(literal_step, kind, mir=True),
        "ER": er(kind),
        "ER-MIR": er_mir(kind),
        "ER-MIR on the head": er_mir(kind, layers="head"),
        "the optimiser's own step": er_mir(kind, direct_step=False),
    }
    if kind == "mlp":
        subjects["weights multiplied out"] = er_mir(kind, factors=False, direct_step=False)
        subjects["products of ER"], subjects["products of ER-MIR"] = (
            matrix_products(mir=False),
            matrix_products(mir=True),
        )
    else:
        subjects["default layout"] = er_mir(kind, channels_last=False)
    if compiled:
        subjects["compiled"], seconds = compile_time(kind)
        yield Line("torch.compile: seconds of CPU until the first step is done", seconds)
    times = interleaved(subjects, kind, repeats=effort.repeats, steps=effort.steps)
    wanted = {"mlp": ("≥ 2", "≤ 2", ""), "resnet": ("≥ 1.6", "≤ 2.3", "≤ 1.7")}[kind]
    yield Line("ER-MIR: literal / ours", str(times.ratio("literal ER-MIR", "ER-MIR")), wanted[0])
    yield Line("ER: literal / ours", str(times.ratio("literal ER", "ER")))
    yield Line("ER-MIR / ER, ours", str(times.ratio("ER-MIR", "ER")), wanted[1])
    yield Line("ER-MIR / ER, literal", str(times.ratio("literal ER-MIR", "literal ER")))
    yield Line("look-ahead on the head / ER", str(times.ratio("ER-MIR on the head", "ER")), wanted[2])
    yield from switched_off(times)
    yield Line("CPU time of a step, ms: ER, ER-MIR", f"{times.median('ER'):.2f}, {times.median('ER-MIR'):.2f}")


def switched_off(times: Times) -> Iterator[Line]:
    names = {
        "the optimiser's own step": "off: plain SGD without the optimiser's ceremony",
        "weights multiplied out": "off: that, and linear layers by their factors",
        "default layout": "off: channels-last",
        "compiled": "on: torch.compile for scoring",
    }
    for name, what in names.items():
        if name in times.values:
            yield Line(f"{what}: ER-MIR so / ER-MIR", str(times.ratio(name, "ER-MIR")))
    if "products of ER" in times.values:
        yield Line("bound: matrix products alone / ER", str(times.ratio("products of ER", "ER")))
        yield Line("bound: matrix products alone / ER-MIR", str(times.ratio("products of ER-MIR", "ER-MIR")))
        yield Line(
            "bound: literal ER-MIR / matrix products alone", str(times.ratio("literal ER-MIR", "products of ER-MIR"))
        )


def compile_time(kind: str) -> tuple[object, str]:
    started = sum(os.times()[:4])
    step = er_mir(kind, compile=True)
    for x, y in batches(kind, 1):
        step(x, y)
    return step, f"{sum(os.times()[:4]) - started:.0f} (less where the cache of an earlier process is found)"


def scaling(effort: Effort) -> Iterator[Line]:
    """What a step's time depends on, and what it must not depend on."""
    capacities = {capacity: er_mir("mlp", capacity=capacity) for capacity in (500, 10_000, 100_000)}
    times = interleaved(
        {str(c): step for c, step in capacities.items()}, "mlp", repeats=effort.repeats, steps=effort.steps
    )
    for capacity in (10_000, 100_000):
        yield Line(f"ER-MIR: memory of {capacity:,} / 500", str(times.ratio(str(capacity), "500")), "within 10 %")
    counts = {str(count): er_mir("mlp", candidates=count) for count in (10, 25, CANDIDATES, 100, 200)}
    times = interleaved(counts, "mlp", repeats=effort.repeats, steps=effort.steps)
    for count in counts:
        if count != str(CANDIDATES):
            yield Line(f"ER-MIR: {count} candidates / {CANDIDATES}", str(times.ratio(count, str(CANDIDATES))))
    classes = {str(number): er_mir("mlp", classes=number) for number in (10, 100, 1000)}
    times = interleaved(classes, "mlp", repeats=effort.repeats, steps=effort.steps)
    for number in ("100", "1000"):
        yield Line(f"ER-MIR: {number} classes / 10 (the last layer grows)", str(times.ratio(number, "10")))


def shares(kind: str, effort: Effort) -> Iterator[Line]:
    rows = list(batches(kind, effort.steps * 2))
    for name, retrieval in (("ER", Uniform()), ("ER-MIR", MostInterfered(CANDIDATES))):
        parts = phases(kind, retrieval, rows)
        yield Line(f"{name}: share of time", ", ".join(f"{phase} {share:.0%}" for phase, share in parts.items()))


def peaks(kind: str) -> Iterator[Line]:
    """The most memory a process of its own has had, beyond what importing everything takes; where Linux tells it."""
    if not Path("/proc/self/clear_refs").exists():
        return
    for name in ("literal ER-MIR", "ER", "ER-MIR"):
        command = [sys.executable, __file__, "--peak", kind, name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        yield Line(f"{name}: peak memory above the start, MB", f"{json.loads(done.stdout) / 1e6:.0f}")


def print_peak(kind: str, name: str) -> None:
    start = reset_peak()
    makers = {
        "literal ER-MIR": lambda: literal_step(kind, mir=True),
        "ER": lambda: er(kind),
        "ER-MIR": lambda: er_mir(kind),
    }
    step = makers[name]()
    for x, y in batches(kind, 5):
        step(x, y)
    print(json.dumps(resident("VmHWM") - start))


def reset_peak() -> int:
    """Let the process's peak be what it has now (Linux), and say what that is."""
    Path("/proc/self/clear_refs").write_text("5", "ascii")
    return resident("VmRSS")


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def split_mnist(effort: Effort) -> Iterator[Line]:
    """A whole run with evaluation, beside the time that its matrix products take alone."""
    for method in ("er", "er-mir"):
        started = time.process_time()
        try:
            result = execute(resolve(method, "split-mnist", {"seed": 0}), settings=Settings())
        except RehearseError as problem:
            yield Line(f"Split MNIST, {method}", f"not run: {problem}")
            continue
        whole, steps = time.process_time() - started, result["cost"]["steps"]
        products = interleaved({"": matrix_products(mir=method == "er-mir")}, "mlp", repeats=effort.repeats, steps=20)
        evaluation = evaluation_products(sum(result["test_sizes"]) * len(result["test_sizes"]))
        bound = products.median("") * steps / 1e3 + evaluation
        yield Line(
            f"Split MNIST, {method}: CPU seconds of a run; share of matrix products",
            f"{whole:.1f} ({steps} steps, {sum(result['test_sizes']):,} rows evaluated after each task); "
            f"{bound / whole:.0%}",
        )


def evaluation_products(rows: int) -> float:
    """Seconds of the products that evaluating so many rows takes, a thousand at a time."""
    x, weights = torch.randn(1000, 784), [torch.randn(out, into) for into, out in ((784, 400), (400, 400), (400, 10))]
    started = time.thread_time()
    for _ in range(10):
        hidden = x
        for weight in weights:
            hidden = hidden @ weight.t()
    return (time.thread_time() - started) / 10 * rows / 1000


# ------------------------------------------------------------------------------------------------------------- the page


def part(lines: dict[str, list[Line]]) -> list[str]:
    text = []
    for title, rows in lines.items():
        text += [f"### {title}", "", "| | | asked for |", "|---|---|---|"]
        text += [f"| {row.what} | {row.value} | {row.wanted} |" for row in rows] + [""]
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--peak", nargs=2, metavar=("KIND", "NAME"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.peak:
        print_peak(*arguments.peak)
        return
    quick = arguments.quick
    mlp, resnet = (Effort(5, 10), Effort(3, 1)) if quick else (Effort(21, 20), Effort(9, 1))
    sections = {
        "MLP 784–400–400–10": lambda: [
            *against_each_other("mlp", mlp, compiled=False),
            *shares("mlp", mlp),
            *peaks("mlp"),
        ],
        "Reduced ResNet-18 on 32 × 32": lambda: [
            *against_each_other("resnet", resnet, compiled=not quick and compiler_at_hand()),
            *shares("resnet", resnet),
            *peaks("resnet"),
        ],
        "What a step's time depends on (MLP)": lambda: list(scaling(mlp)),
        "A whole run": lambda: list(split_mnist(mlp)),
    }
    lines: dict[str, list[Line]] = {}
    for title, measure in sections.items():
        print(f"\n{title}")
        lines[title] = measure()
        for line in lines[title]:
            print(f"  {line.what:<72} {line.value} {f'[{line.wanted}]' if line.wanted else ''}", flush=True)
    if not quick:
        PAGE.write_text(with_part(PAGE, INTRODUCTION, part(lines)), "utf-8")
        print(f"\nwritten to {PAGE.relative_to(PAGE.parents[1])}")


if __name__ == "__main__":
    main()
