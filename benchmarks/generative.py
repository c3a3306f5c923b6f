"""How fast replay from a generator is: steps at the published settings of Split MNIST, on random images.

    python benchmarks/generative.py [--write]

One thread, beside the steps of the reference implementation (literal_generative.py), which take turns with ours in a
process of their own. ``--write`` puts the table into docs/performance-generative.md, ``--quick`` takes few steps.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
from pathlib import Path
from typing import Any

import torch

import subjects
from elsewhere import Elsewhere
from literal_generative import SETTINGS
from measuring import has_bfloat16, interleaved, with_part
from rehearse.lab.spec import load_spec_values

TASKS, BATCHES_PER_TASK = 5, 100
PAGE = Path(__file__).parents[1] / "docs" / "performance-generative.md"
INTRODUCTION = """# Performance of replay from a generator

Made by `python benchmarks/generative.py --write`; do not edit. CPU seconds at the published settings of Split MNIST,
one thread. Steps of ours and of the reference implementation (`benchmarks/literal_generative.py`, in a process of its
own) are interleaved within one run. A run is estimated as 100 batches without replay and 400 with replay, without
evaluation; the last column gives the quartiles in parentheses. There is one part for each kind of processor.
"""


def row(name: str, precision: str, repeats: int) -> str:
    """Measure a method, and return its row of the table."""
    values: dict[str, Any] = {} if name in ("gen", "gen-mir") else load_spec_values(name)
    method, layer = values.get("method", name), {**values, "precision": precision}
    with Elsewhere() as process:
        made = {}
        for when, replaying in (("first", False), ("later", True)):
            made[f"ours {when}"] = subjects.generative(method, layer, replaying=replaying)
            made[f"reference {when}"] = process.make(subjects.reference_generative, name, replaying=replaying)
        times = interleaved(made, repeats=repeats, steps=1)
    run = {
        who: BATCHES_PER_TASK * (times.median(f"{who} first") + (TASKS - 1) * times.median(f"{who} later")) / 1e3
        for who in ("ours", "reference")
    }
    label = name if precision == "float32" else f"{name}, searching in bfloat16"
    updates = SETTINGS[name].updates / times.median("ours later") * 1e3
    faster = f"{run['reference'] / run['ours']:.1f} | {times.ratio('reference later', 'ours later')}"
    return f"| {label} | {updates:.0f} | {run['ours']:.0f} | {run['reference']:.0f} | {faster} |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    parser.add_argument("--quick", action="store_true", help="GEN alone, to see that the script works")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [(name, "float32") for name in SETTINGS] + [("gen-mir", "bfloat16-scoring")] * has_bfloat16()
    if arguments.quick:
        chosen, arguments.repeats = chosen[:1], 2
    lines = [
        "| method | updates a second, each network | CPU s a run, ours | reference | reference / ours | of a step with "
        "replay |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    print("\n".join(lines))
    for name, precision in chosen:
        lines.append(row(name, precision, arguments.repeats))
        print(lines[-1], flush=True)
    if arguments.write:
        PAGE.write_text(with_part(PAGE, INTRODUCTION, lines), "utf-8")


if __name__ == "__main__":
    main()
