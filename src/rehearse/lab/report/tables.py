"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

UNDEFINED = "–"


def percent(numbers: Mapping[str, Any] | None, *, sign: bool = False) -> str:
    """Mean ± half the 95 % interval, in per cent."""
    if numbers is None:
        return UNDEFINED
    mean = f"{100 * numbers['mean']:{'+' if sign else ''}.1f}"
    if numbers["interval"] is None:
        return mean
    low, high = numbers["interval"]
    return f"{mean} ± {50 * (high - low):.1f}"


def comparison_table(comparison: Mapping[str, Any]) -> Table:
    seeds = comparison["seeds"]
    table = Table(
        title=f"{comparison['stream']}, {len(seeds)} seed{'s' if len(seeds) != 1 else ''}: mean ± 95 % interval, in %",
        caption="forgetting: best minus final accuracy, over all tasks but the last; "
        "passes: samples passed forward per incoming sample; CPU s excludes extra evaluation modes",
    )
    mixed = len({name for method in comparison["methods"].values() for name in method["precisions"]}) > 1
    columns = ["accuracy", "median", "forgetting", "pooled", "n", "seconds", "CPU s", "steps/s", "passes"]
    table.add_column("method")
    for column in [*columns, *(["precision"] if mixed else [])]:
        table.add_column(column, justify="right")
    for name, method in comparison["methods"].items():
        accuracy = method["accuracy"]
        cells = [
            percent(accuracy),
            UNDEFINED if accuracy is None else f"{100 * accuracy['median']:.1f}",
            percent(method["forgetting"]),
            UNDEFINED if method["pooled_accuracy"] is None else f"{100 * method['pooled_accuracy']['mean']:.1f}",
            str(len(method["runs"])),
            number(method["seconds"]),
            number(method["cpu_seconds"]),
            number(method["steps_per_second"], digits=0),
            number(method["forward_passes"]),
        ]
        table.add_row(name, *cells, *([", ".join(method["precisions"])] if mixed else []))
    return table


def differences_table(comparison: Mapping[str, Any]) -> Table | None:
    """Methods paired on the same seeds, or None for a single method."""
    if not comparison["differences"]:
        return None
    table = Table(title="paired differences on the same seeds, in points")
    table.add_column("")
    for column in ("accuracy", "forgetting", "n"):
        table.add_column(column, justify="right")
    for row in comparison["differences"]:
        table.add_row(
            f"{row['method']} − {row['minus']}",
            percent(row["accuracy"], sign=True),
            percent(row["forgetting"], sign=True),
            str(row["accuracy"]["n"] if row["accuracy"] else 0),
        )
    return table


def number(value: float | None, *, digits: int = 1) -> str:
    return UNDEFINED if value is None else f"{value:.{digits}f}"
