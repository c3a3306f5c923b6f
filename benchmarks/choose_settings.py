"""Choose hyper-parameters on the validation split, and print the grid with its outcome as Markdown for docs/log.md.

    REHEARSE_DATA=... python benchmarks/choose_settings.py [--stream split-mnist] [METHOD ...]

The test split plays no part, and the seeds (100 to 102) are none of those that results are reported with (0 to 19). The
choice is the highest mean validation accuracy; the first of the grid wins a tie.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from rehearse.errors import InvalidInput
from rehearse.lab.experiment import execute
from rehearse.lab.methods import resolve

SEEDS = (100, 101, 102)
RATES = (0.02, 0.05, 0.1, 0.2)
DARK = {"lr": (0.05, 0.1, 0.2), "alpha": (0.1, 0.5, 1.0), "beta": (0.5, 1.0)}
GRIDS: Mapping[str, Mapping[str, Sequence[float]]] = {
    "er": {"lr": RATES},
    "er-mir": {"lr": RATES},
    "er-mir-head": {"lr": RATES},
    "er-ace": {"lr": RATES},
    "er-ace-mir": {"lr": RATES},
    "der": DARK,
    "der-mir": DARK,
    "gem": {"lr": (0.05, 0.1, 0.2, 0.4)},
    "agem": {"lr": (0.002, 0.005, 0.01, 0.05, 0.1)},
}
FIELDS = ("lr", "budget", "candidates", "updates")
"""What is a field of a spec; the rest are options of the method."""
STEPS: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "er-plus": {
        "split-cifar10": (
            {"lr": 0.1, "budget": 30},
            {"lr": 0.05, "budget": 30},
            {"lr": 0.02, "budget": 30},
            {"lr": 0.01, "budget": 30},
            {"budget": 30, "distill": 5.5},
            {},
        ),
        "split-mnist": (
            {},
            {"lr": 0.2},
            {"lr": 0.05},
            {"budget": 100},
            {"updates": 1, "budget": 100},
            {"replay_weight": 2.0},
            {"distill": 5.5},
            {"distill": 1.0},
            {"loss": "ace"},
            {"predict_by": "nearest-mean"},
            {"average": 0.03},
            {"average": 0.003},
            {"augment": "none"},
        ),
    },
}
"""Changes of a stream's settings, one at a time, for methods with too many settings for a grid."""


class Cost(NamedTuple):
    """What a run with a choice gave: validation accuracy in per cent, and CPU seconds."""

    accuracy: float
    seconds: float


def measured(method: str, stream: str, choice: Mapping[str, Any], seed: int, more: Mapping[str, Any]) -> Cost:
    """Make a run; its accuracy is 0 if it was refused because its numbers were no longer finite."""
    fields = {name: value for name, value in choice.items() if name in FIELDS}
    options = {name: value for name, value in choice.items() if name not in FIELDS}
    try:
        result = execute(resolve(method, stream, {**more, **fields, "options": options, "seed": seed}))
    except InvalidInput:
        return Cost(0.0, 0.0)
    return Cost(100 * float(result["metrics"]["validation_accuracy"]), float(result["cost"]["cpu_seconds"]))


def choices(method: str, stream: str) -> list[Mapping[str, Any]]:
    """Return the settings to compare."""
    if method in STEPS:
        return list(STEPS[method][stream])
    grid = GRIDS[method]
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def table(method: str, stream: str, seeds: Sequence[int], more: Mapping[str, Any]) -> str:
    """Return the outcome of a method's grid."""
    rows = []
    for choice in choices(method, stream):
        found = [measured(method, stream, choice, seed, more) for seed in seeds]
        name = ", ".join(f"{name} {value}" for name, value in choice.items()) or "as in the settings"
        rows.append((name, [one.accuracy for one in found], statistics.mean(one.seconds for one in found)))
        print(rows[-1], file=sys.stderr, flush=True)
    best = max(rows, key=lambda row: statistics.mean(row[1]))
    lines = [f"| {method} | validation accuracy | CPU s |", "|---|---|--:|"]
    for row in rows:
        name, found, seconds = row
        mark, deviation = "**" if row is best else "", f"{statistics.stdev(found):.1f}" if len(found) > 1 else "–"
        lines.append(f"| {mark}{name}{mark} | {mark}{statistics.mean(found):.1f} ({deviation}){mark} | {seconds:.0f} |")
    return "\n".join(lines)


def main() -> None:
    """Make the runs and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help=f"of {', '.join([*GRIDS, *STEPS])}; default: all with a grid")
    parser.add_argument("--stream", default="split-mnist")
    parser.add_argument("--samples", type=int, help="of each task; default: the stream's")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="default: %(default)s")
    parser.add_argument("--precision", default="auto", help="default: %(default)s")
    arguments = parser.parse_args()
    more = {"samples_per_task": arguments.samples, "precision": arguments.precision}
    torch.set_num_threads(1)
    started = time.process_time()
    print(f"## {datetime.date.today()}: settings of {arguments.stream}, chosen on its validation split\n")
    seeds = ", ".join(map(str, arguments.seeds))
    print(f"Mean validation accuracy after the last task, in per cent, over seeds {seeds}; the")
    print("standard deviation over seeds in parentheses; the choice in bold. The test split played no part.\n")
    for method in arguments.methods or GRIDS:
        print(table(method, arguments.stream, arguments.seeds, more), end="\n\n", flush=True)
    command = " ".join(["python benchmarks/choose_settings.py", *sys.argv[1:]])
    print(f"Command: `{command}`; {time.process_time() - started:.0f} CPU seconds, torch {torch.__version__}.")


if __name__ == "__main__":
    main()
