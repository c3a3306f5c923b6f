"""Whether two ways to compute the same runs come out alike: the same seeds from two folders of results, as Markdown.

    python benchmarks/same_seeds.py ONE OTHER

A run of the one folder stands beside the run of the other with the same settings and seed, in whatever precision; what
is shown is the one minus the other, paired, in points, with its 95 % t interval.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rehearse.lab.paper.conditions import condition
from rehearse.lab.spec import Spec
from rehearse.lab.statistics import Summary, paired_difference

METRICS = ("accuracy", "forgetting")
Runs = dict[str, dict[int, Mapping[str, Any]]]  # by what they are besides seed and precision, then by seed


def runs_in(folder: Path) -> Runs:
    found: Runs = {}
    for file in sorted(folder.glob("*.json")):
        result = json.loads(file.read_text("utf-8"))
        spec = Spec.from_dict(result["spec"])
        found.setdefault(replace(spec, seed=0, precision="auto").canonical, {})[spec.seed] = result
    return found


def told(difference: Summary) -> str:
    half = "" if difference.interval is None else f" ± {50 * (difference.interval[1] - difference.interval[0]):.1f}"
    return f"{100 * difference.mean:+.1f}{half}"


def how(results: Mapping[int, Mapping[str, Any]]) -> str:
    return "; ".join(sorted({f"{result['spec']['precision']}, {condition(result)}" for result in results.values()}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("one", type=Path)
    parser.add_argument("other", type=Path)
    chosen = parser.parse_args()
    ones, others = runs_in(chosen.one), runs_in(chosen.other)
    print("| run | seeds | the one | the other | accuracy | forgetting |\n|---|---|---|---|--:|--:|")
    for settings in ones.keys() & others.keys():
        seeds = sorted(ones[settings].keys() & others[settings].keys())
        if not seeds:
            continue
        one, other = ({seed: runs[settings][seed] for seed in seeds} for runs in (ones, others))
        spec = Spec.from_dict(one[seeds[0]]["spec"])
        differences = [
            paired_difference(*({seed: run["metrics"][metric] for seed, run in side.items()} for side in (one, other)))
            for metric in METRICS
        ]
        name = f"{spec.method}, {spec.stream}, {spec.capacity} memories"
        cells = [name, ", ".join(map(str, seeds)), how(one), how(other), *map(told, differences)]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
