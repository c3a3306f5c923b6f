"""What monitors saw, for the page: a line of JSON for each number that a `Monitor` writes at its looks."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...checks import is_number, is_whole
from ...errors import DataError
from ..limits import JSON_BYTES, check_plain, read_limited
from .charts import Chart, curves_chart

CURVES = {
    "recent_accuracy": "before learning, of the last 1,000",
    "heldout_accuracy": "held out",
    "forgetting": "forgetting",
}
MEASURES = ("samples", "accuracy", "forgetting")


class JsonLines:
    """A ``writer`` of `rehearse.Monitor` that appends to a file, which `rehearse report --monitor FILE` shows."""

    def __init__(self, path: str | Path) -> None:
        """Set the file; numbers are appended to one that exists."""
        self.path = Path(path)

    def add_scalar(self, name: str, value: float, samples: int) -> None:
        """Append a number, which was measured after so many samples."""
        with self.path.open("a") as file:
            file.write(json.dumps([samples, name, value]) + "\n")


@dataclass(frozen=True)
class Monitored:
    """One monitor: its curves, the numbers of samples at its alarms, and its groups at the last look."""

    label: str
    chart: Chart
    alarms: list[int]
    groups: list[tuple[str, str, dict[str, float | None]]]


def read_monitored(path: Path) -> Monitored:
    """Read what `JsonLines` wrote."""
    numbers: dict[str, dict[int, float]] = defaultdict(dict)
    for at, line in enumerate(read_limited(path, JSON_BYTES).splitlines(), 1):
        samples, name, value = _checked(line, f"{path}, line {at}")
        numbers[name.removeprefix("rehearse/")][samples] = value
    curves = {label: numbers[name] for name, label in CURVES.items() if name in numbers}
    if not curves:
        raise DataError(f"{path} has no look of a monitor; write it with Monitor(writer=JsonLines({str(path)!r}))")
    alarms, before = list[int](), 0.0
    for samples, value in sorted(numbers["alarm"].items()):
        alarms += [samples] if value > before else []
        before = value
    last = max(samples for curve in curves.values() for samples in curve)
    groups: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for name, values in numbers.items():
        if name.startswith("group_") and last in values and name.count("/") == 2:
            measure, by, group = name.removeprefix("group_").split("/")
            groups[by, group][measure] = values[last]
    known = [(*key, {name: of.get(name) for name in MEASURES}) for key, of in groups.items()]
    return Monitored(path.stem, curves_chart(path.stem, curves), alarms, known)


def _checked(line: bytes, where: str) -> tuple[int, str, float]:
    try:
        content: Any = json.loads(line)
        check_plain(content)
        samples, name, value = content
    except (ValueError, TypeError, RecursionError) as problem:
        raise DataError(f"{where} is not a number of samples, a name and a value: {problem}") from None
    if not (is_whole(samples) and samples >= 0 and isinstance(name, str) and is_number(value)):
        raise DataError(f"{where} is not a number of samples, a name and a value")
    return samples, name, value
