"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from ..within import TIMED

UNDEFINED = "–"
COLUMNS = ("method", "accuracy", "median", "forgetting", "pooled", "n", "seconds", "CPU s", "steps/s", "passes")
DIFFERENCES = ("", "accuracy", "forgetting", "n")
MEANINGS = (
    "forgetting: best minus final accuracy, over all tasks but the last; "
    "passes: samples passed forward per incoming sample; CPU s excludes extra evaluation modes"
)


def with_half(mean: float, interval: Sequence[float] | None, unit: float, digits: int = 1, sign: bool = False) -> str:
    """Mean ± half the interval."""
    words = f"{unit * mean:{'+' if sign else ''}.{digits}f}"
    return words if interval is None else f"{words} ± {unit * (interval[1] - interval[0]) / 2:.{digits}f}"


def percent(numbers: Mapping[str, Any] | None, *, sign: bool = False) -> str:
    """Mean ± half the 95 % interval, in per cent."""
    return UNDEFINED if numbers is None else with_half(numbers["mean"], numbers["interval"], 100.0, sign=sign)


def table_of(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, caption: str = "") -> Table:
    """A table whose first ``left`` columns are words and whose others are numbers."""
    table = Table(title=title, caption=caption or None)
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place < left else "right")
    for row in rows:
        table.add_row(*row)
    return table


def comparison_table(comparison: Mapping[str, Any]) -> Table:
    seeds = comparison["seeds"]
    title = f"{comparison['stream']}, {len(seeds)} seed{'s' if len(seeds) != 1 else ''}: mean ± 95 % interval, in %"
    mixed = len({name for method in comparison["methods"].values() for name in method["precisions"]}) > 1
    rows = []
    for name, method in comparison["methods"].items():
        accuracy, pooled = method["accuracy"], method["pooled_accuracy"]
        cells = [
            percent(accuracy),
            number(accuracy and 100 * accuracy["median"]),
            percent(method["forgetting"]),
            number(pooled and 100 * pooled["mean"]),
            str(len(method["runs"])),
            number(method["seconds"]),
            number(method["cpu_seconds"]),
            number(method["steps_per_second"], digits=0),
            number(method["forward_passes"]),
        ]
        rows.append([name, *cells, *([", ".join(method["precisions"])] if mixed else [])])
    return table_of(title, [*COLUMNS, *(["precision"] if mixed else [])], rows, caption=MEANINGS)


def over_time_table(comparison: Mapping[str, Any]) -> Table | None:
    """What evaluations within tasks measured, or None where there are none."""
    rows = [(name, *(percent(method[timed]) for timed in TIMED)) for name, method in comparison["methods"].items()]
    head = ("method", *(name.replace("_", " ") for name in TIMED))
    return table_of("over time, in %", head, rows) if any({*row[1:]} != {UNDEFINED} for row in rows) else None


def differences_table(comparison: Mapping[str, Any]) -> Table | None:
    """Methods paired on the same seeds, or None for a single method."""
    rows = [
        (
            f"{row['method']} − {row['minus']}",
            percent(row["accuracy"], sign=True),
            percent(row["forgetting"], sign=True),
            str(row["accuracy"]["n"] if row["accuracy"] else 0),
        )
        for row in comparison["differences"]
    ]
    return table_of("paired differences on the same seeds, in points", DIFFERENCES, rows) if rows else None


def number(value: float | None, *, digits: int = 1) -> str:
    return UNDEFINED if value is None else f"{value:.{digits}f}"
