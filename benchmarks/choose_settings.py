"""Choose hyper-parameters on the validation split, and print the grid with its outcome as Markdown for docs/log.md.

    REHEARSE_DATA=... python benchmarks/choose_settings.py [--stream split-mnist] [METHOD ...]

The test split takes no part, and the seeds (100 to 102) are none of those that results are reported with (0 to
19). The choice is the highest mean validation accuracy; the first of the grid wins a tie.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from rehearse.errors import InvalidInput
from rehearse.lab.experiment import Settings, execute
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


def combinations(grid: Mapping[str, Sequence[float]]) -> Iterator[dict[str, float]]:
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def as_layer(choice: Mapping[str, float], seed: int) -> dict[str, Any]:
    """A choice as a layer of settings: the learning rate is a setting of every method, the rest are options."""
    options = {name: value for name, value in choice.items() if name != "lr"}
    return {"lr": choice["lr"], "options": options, "seed": seed}


def validation_accuracy(method: str, stream: str, choice: Mapping[str, float], seed: int) -> float:
    """In per cent; 0 for a run that was refused because its numbers were no longer finite."""
    try:
        result = execute(resolve(method, stream, as_layer(choice, seed)), None, Settings())
    except InvalidInput:
        return 0.0
    return 100 * float(result["metrics"]["validation_accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help=f"of {', '.join(GRIDS)}; default: all")
    parser.add_argument("--stream", default="split-mnist")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    started = time.process_time()
    print(f"## {datetime.date.today()}: settings of {arguments.stream}, chosen on its validation split\n")
    print(f"Mean validation accuracy after the last task, in per cent, over seeds {', '.join(map(str, SEEDS))}; the")
    print("standard deviation over seeds in brackets; the choice in bold. The test split took no part.\n")
    for method in arguments.methods or GRIDS:
        rows = []
        for choice in combinations(GRIDS[method]):
            values = [validation_accuracy(method, arguments.stream, choice, seed) for seed in SEEDS]
            rows.append((choice, statistics.mean(values), statistics.stdev(values)))
        best = max(rows, key=lambda row: row[1])
        print(f"| {method}: {', '.join(GRIDS[method])} | validation accuracy |\n|---|---|")
        for row in rows:
            mark = "**" if row is best else ""
            name = ", ".join(f"{value:g}" for value in row[0].values())
            print(f"| {mark}{name}{mark} | {mark}{row[1]:.1f} ({row[2]:.1f}){mark} |")
        print(flush=True)
    command = " ".join(["python benchmarks/choose_settings.py", "--stream", arguments.stream, *arguments.methods])
    print(f"Command: `{command}`; {time.process_time() - started:.0f} CPU seconds, torch {torch.__version__}.")


if __name__ == "__main__":
    main()
