"""How fast replay from codes is: steps of the autoencoder and of the classifier, on random images.

    python benchmarks/hybrid.py [--repeats 5] [--write]

At the published settings of Split CIFAR-10 with 1,000 codes, on one thread, beside the steps of the reference
implementation (literal_hybrid.py), which take turns with ours in a process of their own. ``--write`` puts the table
into docs/performance-hybrid.md, ``--quick`` takes few steps.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch

import subjects
from elsewhere import Elsewhere, Step, Timed
from measuring import Times, has_bfloat16, interleaved, ratio, with_part

TASKS, BATCHES, EPOCHS = 5, 975, 5
REFERENCE = {"autoencoder": "training_epoch_step", "classifier": "last_epoch_step"}
PAGE = Path(__file__).parents[1] / "docs" / "performance-hybrid.md"
INTRODUCTION = """# Performance of replay from codes

Made by `python benchmarks/hybrid.py --write`; do not edit. CPU time at the published settings of Split CIFAR-10 with
1,000 codes, one thread, on random images. Steps of ours and of the reference implementation
(`benchmarks/literal_hybrid.py`, in a process of its own, float32) are interleaved within one run; a ratio is the median
over turns, with the quartiles in parentheses. Steps are those with a full memory. A run is estimated from its steps:
975 batches a task, the first of five tasks without stored codes, and no evaluation. The reference implementation trains
the autoencoder in four epochs, and in the fifth inside the classifier's step; ours in five epochs, before. What ours
does once an epoch (reading the codes ahead, updating them) is not included. *Without fast paths* is ours with
`REHEARSE_FAST=0`. There is one part for each kind of processor.
"""


def compare(method: str, precision: str, repeats: int, codes: int) -> Iterator[str]:
    """Measure a method, and yield its rows of the table."""
    made: dict[str, Step | Timed] = {}
    with Elsewhere() as process:
        for when, sizes in (("later", {"full": True, "codes": codes}), ("first", {"full": False, "codes": codes})):
            for what, maker in (("autoencoder", subjects.CodedAutoencoder), ("classifier", subjects.coded_classifier)):
                made[f"ours {what} {when}"] = maker(method, precision, **sizes)
                with subjects.without_fast():
                    made[f"plain {what} {when}"] = maker(method, precision, **sizes)
                step, search = REFERENCE[what], method == "ae-mir"
                made[f"reference {what} {when}"] = process.make(subjects.reference_coded, step, search=search, **sizes)
        # Steps of the autoencoder are short, and the first of a turn finds cold caches.
        steps = {name: 1 if repeats == 1 else 10 if "autoencoder" in name else 2 for name in made}
        times = interleaved(made, repeats=repeats, steps=steps)
    runs = {who: run_seconds(times, who, EPOCHS - (who == "reference")) for who in ("ours", "plain", "reference")}
    for what in ("autoencoder", "classifier"):
        ours, other = f"ours {what} later", f"reference {what} later"
        cells = f"{times.median(ours):.1f} ms | {times.median(other):.1f} ms | {times.ratio(other, ours)}"
        yield f"| {method} | {precision} | {what}, a step | {cells} |"
    for what, who in (("a run", "ours"), ("a run, without fast paths", "plain")):
        own, other = (statistics.median(runs[name]) for name in (who, "reference"))
        cells = f"{own:.0f} s | {other:.0f} s | {ratio(runs['reference'], runs[who])}"
        yield f"| {method} | {precision} | {what} | {cells} |"


def run_seconds(times: Times, who: str, epochs: int) -> list[float]:
    """Return the CPU seconds of a run, by repeat."""

    def tasks(what: str) -> list[float]:
        first, later = (times.values[f"{who} {what} {when}"] for when in ("first", "later"))
        return [BATCHES * (a + (TASKS - 1) * b) / 1e3 for a, b in zip(first, later, strict=True)]

    return [epochs * a + b for a, b in zip(tasks("autoencoder"), tasks("classifier"), strict=True)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    parser.add_argument("--quick", action="store_true", help="AE alone, to see that the script works")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chosen = [(m, p) for p in ("float32", *["bfloat16"] * has_bfloat16()) for m in ("ae", "ae-mir")]
    codes = subjects.CODES
    if arguments.quick:
        chosen, arguments.repeats, codes = chosen[:1], 1, 10
    lines = ["| method | precision | | ours | reference | reference / ours |", "|---|---|---|--:|--:|--:|"]
    print("\n".join(lines))
    for method, precision in chosen:
        for line in compare(method, precision, arguments.repeats, codes):
            lines.append(line)
            print(line, flush=True)
    if arguments.write:
        PAGE.write_text(with_part(PAGE, INTRODUCTION, lines), "utf-8")


if __name__ == "__main__":
    main()
