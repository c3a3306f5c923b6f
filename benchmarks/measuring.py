"""Times that can be compared: CPU time, interleaved repeats, ratios within a repeat, medians and quartiles."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rehearse.compute import native_bfloat16

from elsewhere import Elsewhere
from rehearse.lab.environment import environment
from subjects import ROWS, Step, images


@dataclass(frozen=True)
class Ratio:
    """How many times the one is of the other: the median over repeats, and the middle half of them."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} – {self.high:.2f})"


@dataclass(frozen=True)
class Times:
    """Milliseconds of CPU a step, by subject and repeat."""

    values: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        return statistics.median(self.values[name])

    def ratio(self, name: str, to: str) -> Ratio:
        ratios = sorted(a / b for a, b in zip(self.values[name], self.values[to], strict=True))
        low, _, high = statistics.quantiles(ratios, n=4)
        return Ratio(statistics.median(ratios), low, high)


def batches(kind: str, count: int, classes: int = 10) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    x, y = images(kind, ROWS * count, classes, seed=2)
    yield from zip(x.split(ROWS), y.split(ROWS), strict=True)


def interleaved(
    subjects: Mapping[str, Step | Elsewhere], kind: str, *, repeats: int, steps: int, classes: int = 10
) -> Times:
    """Every subject takes its turn in every repeat, so that what disturbs the machine disturbs them alike."""
    values: dict[str, list[float]] = {name: [] for name in subjects}
    rows = list(batches(kind, steps, classes))
    for repeat in range(-1, repeats):
        for name, step in subjects.items():
            seconds = step.seconds(rows) if isinstance(step, Elsewhere) else seconds_here(step, rows)
            if repeat >= 0:  # the first turn warms up
                values[name].append(seconds / steps * 1e3)
    return Times(values)


def seconds_here(step: Step, calls: Sequence[tuple[Any, ...]]) -> float:
    started = time.thread_time()
    for call in calls:
        step(*call)
    return time.thread_time() - started


def with_part(page: Path, introduction: str, body: Sequence[str]) -> str:
    """A page of measurements with this kind of processor's part in place of its older one; those of others stay."""
    there = environment()
    bfloat16 = "native bfloat16" if native_bfloat16(torch.device("cpu")) else "no native bfloat16"
    model = f" ({there['processor_model']})" if there["processor_model"] else ""
    title = f"## {there['processor']}{model}, {there['cpu_capability']}, {bfloat16}"
    made = f"torch {there['torch']}, {there['threads']} thread, commit {there['commit']}."
    own = "\n".join([title, "", made, "", *body])
    text = page.read_text("utf-8") if page.exists() else ""
    others = [f"## {section}" for section in text.split("\n## ")[1:]]
    others = [section.rstrip() for section in others if section.splitlines()[0] != title]
    return "\n\n".join([introduction.rstrip(), *sorted([*others, own.rstrip()])]) + "\n"
