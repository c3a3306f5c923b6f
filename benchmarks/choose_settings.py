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
import time
from collections.abc import Mapping, Sequence

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


def validation_accuracy(method: str, stream: str, choice: Mapping[str, float], seed: int, samples: int | None) -> float:
    """Return it in per cent; 0 for a run that was refused because its numbers were no longer finite."""
    options = {name: value for name, value in choice.items() if name != "lr"}
    layer = {"lr": choice["lr"], "options": options, "seed": seed, "samples_per_task": samples}
    try:
        result = execute(resolve(method, stream, layer))
    except InvalidInput:
        return 0.0
    return 100 * float(result["metrics"]["validation_accuracy"])


def table(method: str, stream: str, samples: int | None) -> str:
    """Return the outcome of a method's grid."""
    grid, rows = GRIDS[method], []
    for values in itertools.product(*grid.values()):
        choice = dict(zip(grid, values, strict=True))
        found = [validation_accuracy(method, stream, choice, seed, samples) for seed in SEEDS]
        rows.append((", ".join(f"{value:g}" for value in values), statistics.mean(found), statistics.stdev(found)))
    best = max(rows, key=lambda row: row[1])
    lines = [f"| {method}: {', '.join(grid)} | validation accuracy |", "|---|---|"]
    for row in rows:
        name, mean, deviation = row
        mark = "**" if row is best else ""
        lines.append(f"| {mark}{name}{mark} | {mark}{mean:.1f} ({deviation:.1f}){mark} |")
    return "\n".join(lines)


def main() -> None:
    """Make the runs and print the outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", help=f"of {', '.join(GRIDS)}; default: all")
    parser.add_argument("--stream", default="split-mnist")
    parser.add_argument("--samples", type=int, help="of each task; default: the stream's")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    print(f"## {datetime.date.today()}: settings of {arguments.stream}, chosen on its validation split\n")
    print(f"Mean validation accuracy after the last task, in per cent, over seeds {', '.join(map(str, SEEDS))}; the")
    print("standard deviation over seeds in parentheses; the choice in bold. The test split played no part.\n")
    for method in arguments.methods or GRIDS:
        print(table(method, arguments.stream, arguments.samples), end="\n\n", flush=True)
    command = " ".join(["python benchmarks/choose_settings.py", "--stream", arguments.stream, *arguments.methods])
    print(f"Command: `{command}`; {time.process_time() - started:.0f} CPU seconds, torch {torch.__version__}.")


if __name__ == "__main__":
    main()
