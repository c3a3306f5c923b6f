"""Similar projects: what benchmarks/peers.py measured, and what was read or measured elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rehearse.lab.report.reproduction import markdown_table, number
from rehearse.lab.statistics import summary
from rehearse.metrics import forgetting

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"
NAMES = {"rehearse": "rehearse", "avalanche": "avalanche", "capymoa": "CapyMOA"}
ADDRESSES = {
    "rehearse": "",
    "avalanche": "https://github.com/ContinualAI/avalanche",
    "mammoth": "https://github.com/aimagelab/mammoth",
    "CapyMOA": "https://github.com/adaptive-machine-learning/CapyMOA",
    "RaptorMai": "https://github.com/RaptorMai/online-continual-learning",
    "river": "https://github.com/online-ml/river",
}
# Project, scope, lines for an own model and stream with plain replay (docs/peers.md), resume, deletion, prefer it for.
READ = (
    ("rehearse", "online replay", "4", "at any step", "by id", "replay in a service, or in a study"),
    ("avalanche", "all of continual learning", "10", "per experience", "no", "many benchmarks, metrics, plugins"),
    ("mammoth", "research methods", "a file in it", "not in a task", "no", "the newest methods, runs from a shell"),
    ("CapyMOA", "data streams", "9", "at any step", "no", "drift detectors, stream learners, MOA"),
    ("RaptorMai", "a survey's baselines", "edit its source", "not in a task", "no", "comparing with the survey"),
    ("river", "online learning", "no networks", "pickle", "no", "trees and linear models, µs a sample"),
)
# Accuracy and ms of ER; MIR at a learning rate of 0.1, five seeds: measured earlier, not beside the others.
EARLIER = {"mammoth": ("81.2; – *", "0.8; – *"), "RaptorMai": ("84.0; 87.4 *", "1.7; 3.9 *"), "river": ("–", "–")}
SHOWN = {"rehearse": ("ER", "MIR"), "avalanche": ("ER, online", "MIR, online"), "CapyMOA": ("ER", "")}


def peer_parts() -> dict[str, str]:
    """Return the generated parts of README.md and docs/peers.md by the name of their mark."""
    accuracy, times = (
        json.loads((BENCHMARKS / name).read_text("utf-8")) for name in ("peers.json", "peers-times.json")
    )
    rows = [_measured(row, _same(row, times["rows"])) for row in accuracy["rows"]]
    return {"peers": _projects(rows), "peers-measured": _table(rows), "peers-made": _made(accuracy, times)}


def _same(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the row of the same library, method and rate."""
    place = ("library", "method", "lr")
    return next(one for one in rows if [one[name] for name in place] == [row[name] for name in place])


def _measured(row: Mapping[str, Any], timed: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of a row: accuracy and forgetting in per cent, the median time of a step."""
    squares = [[line + [0.0] * (len(matrix) - len(line)) for line in matrix] for matrix in row["matrices"]]
    return {
        "library": NAMES[row["library"]],
        "method": row["method"],
        "lr": row["lr"],
        "accuracy": summary(fmean(matrix[-1]) for matrix in row["matrices"]),
        "forgetting": 100 * fmean(forgetting(square) for square in squares),
        "ms": median(timed["ms"]),
    }


def _projects(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of projects: measured ones with two numbers, ER and MIR."""
    found = {(row["library"], row["method"]): row for row in rows}
    lines = []
    for project, scope, own, resume, deletion, prefer in READ:
        if project in SHOWN:
            both = [found.get((project, method)) for method in SHOWN[project]]
            accuracy = "; ".join(f"{100 * row['accuracy'].mean:.1f}" if row else "–" for row in both)
            ms = "; ".join(f"{row['ms']:.1f}" if row else "–" for row in both)
        else:
            accuracy, ms = EARLIER[project]
        name = f"[{project}]({ADDRESSES[project]})" if ADDRESSES[project] else project
        lines.append([name, scope, own, resume, deletion, accuracy, ms, prefer])
    head = ["project", "scope", "own model, lines", "resume", "delete", "ER; MIR, %", "ms a step", "prefer it for"]
    return markdown_table(head, lines, right=len(head))


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of everything measured."""
    lines = [
        [
            *(row["library"], row["method"], f"{row['lr']:g}", number(row["accuracy"], "accuracy")),
            *(f"{row['forgetting']:.1f}", f"{row['ms']:.2f}"),
        ]
        for row in rows
    ]
    return markdown_table(["library", "method", "learning rate", "accuracy", "forgetting", "ms a step"], lines, right=2)


def _made(accuracy: Mapping[str, Any], times: Mapping[str, Any]) -> str:
    """Return how it was measured: versions, seeds, processor."""
    versions = ", ".join(f"{NAMES[name]} {one['version']}" for name, one in accuracy["versions"].items())
    there, seeds, turns = times["environment"], len(accuracy["rows"][0]["matrices"]), len(times["rows"][0]["ms"])
    return (
        f"{versions}; torch {there['torch']}, Python {there['python']}, one thread of {there['processor']} "
        f"({there['processor_model']}, {there['cpu_capability']}), {times['made']}. Accuracy: {seeds} seeds, "
        f"mean ± half the 95 % interval. CPU time: the median of {turns} turns while queued work was paused."
    )
