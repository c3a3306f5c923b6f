"""Compare the same runs, computed in two ways: the same seeds from two folders of results, as Markdown.

    rehearse run er-mir --stream split-cifar10 --seeds 3 --out runs/fast
    REHEARSE_FAST=0 rehearse run er-mir --stream split-cifar10 --seeds 3 --precision float32 --out runs/plain
    python benchmarks/same_seeds.py runs/fast runs/plain

A run of the first folder is compared with the run of the second that has the same settings and seed, in whatever
precision. The table has the first minus the second in points, paired, with its 95 % t interval, and the CPU seconds of
the second over those of the first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rehearse.lab.paper.conditions import condition
from rehearse.lab.spec import Spec
from rehearse.lab.statistics import Summary, paired_difference

METRICS = ("accuracy", "forgetting")
Results = Mapping[int, Mapping[str, Any]]  # by seed


def results(folder: Path) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Return the results of a folder, by their settings without seed and precision, then by seed."""
    found: dict[str, dict[int, Mapping[str, Any]]] = {}
    for file in sorted(folder.glob("*.json")):
        result = json.loads(file.read_text("utf-8"))
        spec = Spec.from_dict(result["spec"])
        found.setdefault(replace(spec, seed=0, precision="auto").canonical, {})[spec.seed] = result
    return found


def table(first: Path, second: Path) -> Iterator[str]:
    """Yield the rows of the table."""
    yield "| run | seeds | first | second | accuracy | forgetting | CPU s |\n|---|---|---|---|--:|--:|--:|"
    ones, others = results(first), results(second)
    for settings in ones.keys() & others.keys():
        seeds = sorted(ones[settings].keys() & others[settings].keys())
        if not seeds:
            continue
        one, other = ({seed: runs[settings][seed] for seed in seeds} for runs in (ones, others))
        spec = Spec.from_dict(one[seeds[0]]["spec"])
        cells = [f"{spec.method}, {spec.stream}, {spec.capacity} stored", ", ".join(map(str, seeds))]
        cells += [conditions(one), conditions(other)]
        for metric in METRICS:
            both = ({seed: run["metrics"][metric] for seed, run in side.items()} for side in (one, other))
            cells.append(points(paired_difference(*both)))
        seconds = [sum(run["cost"]["cpu_seconds"] for run in side.values()) for side in (other, one)]
        yield f"| {' | '.join([*cells, f'{seconds[0] / seconds[1]:.2f}'])} |"


def points(difference: Summary) -> str:
    """Return a difference in points."""
    half = "" if difference.interval is None else f" ± {50 * (difference.interval[1] - difference.interval[0]):.1f}"
    return f"{100 * difference.mean:+.1f}{half}"


def conditions(runs: Results) -> str:
    """Return in which precision and where runs were made."""
    return "; ".join(sorted({f"{result['spec']['precision']}, {condition(result)}" for result in runs.values()}))


def main() -> None:
    """Print the table of two folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    chosen = parser.parse_args()
    print("\n".join(table(chosen.first, chosen.second)))


if __name__ == "__main__":
    main()
