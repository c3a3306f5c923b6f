"""How fast a step is: ``make bench``. Prints ratios and writes this processor's part of docs/performance.md.

One thread, CPU time, all subjects of a comparison interleaved; quartiles over repeats in parentheses. ``--quick`` takes
a few steps of the MLP and writes nothing. `versions.py` compares with an earlier version.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

import subjects
from elsewhere import Elsewhere, Step, Timed
from measuring import has_bfloat16, interleaved, with_part
from rehearse.errors import RehearseError
from rehearse.lab.experiment import execute
from rehearse.lab.methods import resolve
from subjects import CANDIDATES, replay

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
INTRODUCTION = """# Performance

Made by `make bench`; do not edit. Ratios of the CPU time of a step within one run: one thread, interleaved repeats, the
median and in parentheses the quartiles over repeats. Incoming batch 10, budget 10, 50 candidates, memory of 500 unless
said otherwise. *Reference* is the step of `benchmarks/literal.py`: deep copy, flattened gradients, a mask over the
whole memory, float32, torch's default layout, in a process of its own. There is one part for each kind of processor.
"""


class Line(NamedTuple):
    """A row of the table."""

    what: str
    value: str
    target: str = ""


class Effort(NamedTuple):
    """How long to measure."""

    repeats: int
    steps: int


def compared(kind: str, effort: Effort) -> Iterator[Line]:
    """Yield ours against the reference, ER-MIR against ER, and what each shortcut saves."""
    both = {"ER": False, "ER-MIR": True}
    made: dict[str, Step | Timed] = {name: replay(kind, mir=mir) for name, mir in both.items()}
    made["ER-MIR on the head"] = replay(kind, mir=True, layers="head")
    with subjects.without_fast():
        made |= {f"plain {name}": replay(kind, mir=mir) for name, mir in both.items()}
    if kind == "mlp":
        made |= {f"products of {name}": subjects.matrix_products(mir=mir) for name, mir in both.items()}
    else:
        made["default layout"] = replay(kind, mir=True, channels_last=False)
        if has_bfloat16():
            made["float32"] = replay(kind, mir=True, precision="float32")
    with Elsewhere() as process:
        for name, mir in both.items():
            made[f"reference {name}"] = process.make(subjects.reference_replay, kind, mir=mir)
        times = interleaved(made, repeats=effort.repeats, steps=effort.steps)
    targets = {"mlp": ("≥ 2", "≤ 2", ""), "resnet": ("≥ 1.6", "≤ 2.3", "≤ 1.7")}[kind]
    for what, above, below, target in (
        ("ER-MIR: reference / ours", "reference ER-MIR", "ER-MIR", targets[0]),
        ("ER: reference / ours", "reference ER", "ER", ""),
        ("ER-MIR / ER, ours", "ER-MIR", "ER", targets[1]),
        ("ER-MIR / ER, reference", "reference ER-MIR", "reference ER", ""),
        ("look-ahead on the head / ER", "ER-MIR on the head", "ER", targets[2]),
        ("ER: without fast paths (REHEARSE_FAST=0) / ours", "plain ER", "ER", ""),
        ("ER-MIR: without fast paths (REHEARSE_FAST=0) / ours", "plain ER-MIR", "ER-MIR", ""),
        ("ER-MIR: default layout / channels-last", "default layout", "ER-MIR", ""),
        ("ER-MIR: scoring in float32 / in bfloat16", "float32", "ER-MIR", ""),
        ("ER: lower bound, matrix products alone / ours", "products of ER", "ER", ""),
        ("ER-MIR: lower bound, matrix products alone / ours", "products of ER-MIR", "ER-MIR", ""),
    ):
        if above in times.values:
            yield Line(what, str(times.ratio(above, below)), target)
    yield Line("CPU time of a step, ms: ER, ER-MIR", f"{times.median('ER'):.2f}, {times.median('ER-MIR'):.2f}")


def scaling(effort: Effort) -> Iterator[Line]:
    """Yield what a step's time depends on, and what it must not depend on."""
    for what, name, values, target in (
        ("memory of", "capacity", (500, 10_000, 100_000), "within 10 %"),
        ("candidates:", "candidates", (CANDIDATES, 10, 25, 100, 200), ""),
        ("classes:", "classes", (10, 100, 1000), ""),
    ):
        made = {f"{value:,}": replay("mlp", mir=True, **{name: value}) for value in values}
        times = interleaved(made, repeats=effort.repeats, steps=effort.steps)
        first, *others = made
        for other in others:
            yield Line(f"ER-MIR, {what} {other} / {first}", str(times.ratio(other, first)), target)


def peaks(kind: str) -> Iterator[Line]:
    """Yield the peak memory of a process of its own, beyond what importing everything takes; on Linux."""
    makers = {"reference ER-MIR": subjects.reference_replay, "ER": replay, "ER-MIR": replay}
    for name, maker in makers.items() if Path("/proc/self/clear_refs").exists() else ():
        with Elsewhere() as process:
            peak = process.call(subjects.peak_memory, maker, kind, mir="MIR" in name)
        yield Line(f"{name}: peak memory above the start, MB", f"{peak / 1e6:.0f}")


def whole_run() -> Iterator[Line]:
    """Yield the CPU time of a run with evaluation."""
    for method in ("er", "er-mir"):
        what, started = f"Split MNIST, {method}: CPU seconds of a run", time.process_time()
        try:
            steps = execute(resolve(method, "split-mnist", {"seed": 0}))["cost"]["steps"]
        except RehearseError as problem:
            yield Line(what, f"not run: {problem}")
        else:
            yield Line(what, f"{time.process_time() - started:.1f} ({steps} steps, evaluation after each task)")


def part(lines: dict[str, list[Line]]) -> list[str]:
    """Return this processor's part of the page."""
    text = []
    for title, rows in lines.items():
        text += [f"### {title}", "", "| | | target |", "|---|---|---|"]
        text += [f"| {row.what} | {row.value} | {row.target} |" for row in rows] + [""]
    return text


def main() -> None:
    """Measure, print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    mlp, resnet = (Effort(2, 1), Effort(1, 1)) if quick else (Effort(21, 20), Effort(9, 1))
    sections: dict[str, Callable[[], list[Any]]] = {
        "MLP 784–400–400–10": lambda: [*compared("mlp", mlp), *peaks("mlp")],
        "Reduced ResNet-18 on 32 × 32": lambda: [*compared("resnet", resnet), *peaks("resnet")],
        "What a step's time depends on (MLP)": lambda: [*scaling(mlp)],
        "A whole run": lambda: [*whole_run()],
    }
    if quick:
        sections = {"MLP 784–400–400–10": lambda: [*compared("mlp", mlp)]}
    lines: dict[str, list[Line]] = {}
    for title, measure in sections.items():
        print(f"\n{title}")
        lines[title] = measure()
        for line in lines[title]:
            print(f"  {line.what:<56} {line.value} {f'[{line.target}]' if line.target else ''}", flush=True)
    if not quick:
        PAGE.write_text(with_part(PAGE, INTRODUCTION, part(lines)), "utf-8")
        print(f"\nwritten to {PAGE.relative_to(PAGE.parents[1])}")


if __name__ == "__main__":
    main()
