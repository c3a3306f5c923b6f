"""Times that can be compared: CPU time, interleaved repeats, ratios within a repeat, medians and quartiles."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from elsewhere import Step, Timed, cpu_seconds
from rehearse.lab.environment import environment
from rehearse.precision import supports_bfloat16


def has_bfloat16() -> bool:
    """Return whether this processor multiplies bfloat16 in hardware."""
    return supports_bfloat16(torch.device("cpu"))


@dataclass(frozen=True)
class Ratio:
    """How many times one is of the other: the median over repeats, and the quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} – {self.high:.2f})"


@dataclass(frozen=True)
class Times:
    """Milliseconds of CPU time of a step, by subject and repeat."""

    values: Mapping[str, list[float]]

    def median(self, name: str) -> float:
        """Return the median of a subject."""
        return statistics.median(self.values[name])

    def ratio(self, name: str, to: str) -> Ratio:
        """Return how many times the one is of the other."""
        return ratio(self.values[name], self.values[to])


def ratio(above: Sequence[float], below: Sequence[float]) -> Ratio:
    """Return the ratio of two series of the same repeats."""
    ratios = [a / b for a, b in zip(above, below, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Ratio(median, low, high)


def interleaved(
    subjects: Mapping[str, Step | Timed], *, repeats: int, steps: int | Mapping[str, int]
) -> Times:  # fmt: skip
    """Let every subject take its turn in every repeat, so that a disturbance of the machine disturbs all alike.

    Args:
        subjects: By name.
        repeats: How many turns each has, after one to warm up. The order is reversed in every second repeat.
        steps: In a turn; for all subjects or by name.
    """
    values: dict[str, list[float]] = {name: [] for name in subjects}
    for repeat in range(-1, repeats):
        for name in reversed(subjects) if repeat % 2 else subjects:  # type: ignore[call-overload]
            count = steps if isinstance(steps, int) else steps[name]
            seconds = cpu_seconds(subjects[name], count)
            if repeat >= 0:
                values[name].append(seconds / count * 1e3)
    return Times(values)


def with_part(page: Path, introduction: str, body: Sequence[str]) -> str:
    """Return a page of measurements with this kind of processor's part replaced; those of others stay."""
    there = environment()
    bfloat16 = "native bfloat16" if has_bfloat16() else "no native bfloat16"
    model = f" ({there['processor_model']})" if there["processor_model"] else ""
    title = f"## {there['processor']}{model}, {there['cpu_capability']}, {bfloat16}"
    made = f"torch {there['torch']}, {there['threads']} thread, commit {there['commit']}."
    own = "\n".join([title, "", made, "", *body])
    text = page.read_text("utf-8") if page.exists() else ""
    others = [f"## {section}" for section in text.split("\n## ")[1:]]
    others = [section.rstrip() for section in others if section.splitlines()[0] != title]
    return "\n\n".join([introduction.rstrip(), *sorted([*others, own.rstrip()])]) + "\n"
