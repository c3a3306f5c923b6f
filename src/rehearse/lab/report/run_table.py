"""One run as a table, in units that a person reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from ..spec import Spec
from .compare import flat_spec
from .progress import duration
from .reproduction import PER_CENT
from .tables import UNDEFINED, table_of

POINTS = ("forgetting", "backward_transfer", "stability_gap")  # differences of accuracies


def run_table(title: str, result: Mapping[str, Any]) -> Table:
    """The settings of a run, its metrics, its cost, and where it was made, a section each."""
    settings = {name: value for name, value in flat_spec(Spec.from_dict(result["spec"])).items() if value is not None}
    parts = {
        "settings": {name: plain(value) for name, value in settings.items()},
        "results": {name: metric(name, value) for name, value in result["metrics"].items()},
        "cost": {name: cost(name, value) for name, value in result["cost"].items()},
        "environment": {name: plain(value) for name, value in result["environment"].items()},
    }
    table = table_of(title, ("", "", ""), [], left=3)
    table.show_header = False
    for part, values in parts.items():
        for place, (name, words) in enumerate(values.items()):
            said = name.removesuffix("_bytes").replace("seconds", "time").replace("_", " ")
            table.add_row("" if place else part, said, words)
        table.add_section()
    return table


def metric(name: str, value: float | None) -> str:
    """Per cent where the metric is a fraction, points where it is a difference of fractions; else as it is."""
    if value is None:
        return UNDEFINED
    if name in POINTS:
        return f"{100 * value:.1f} points"
    return f"{100 * value:.1f} %" if name in PER_CENT else f"{value:.4g}"


def cost(name: str, value: Any) -> str:
    """A time or a size with its unit; other numbers with thousands separated."""
    if not isinstance(value, int | float):
        return plain(value)
    if name.endswith("seconds"):
        return duration(value) if value >= 10 else f"{value:.1f} s"
    if name.endswith("bytes"):
        return size(value)
    if name == "forward_passes":
        return f"{value:,.1f} samples per incoming sample"
    return f"{value:,.0f}"


def size(value: float) -> str:
    """Bytes in the largest unit that leaves a number above one."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:,.1f} {unit}"
    return f"{value:,.0f} bytes"


def plain(value: Any) -> str:
    """A value without the marks of JSON."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: UNDEFINED}[value]
    if isinstance(value, dict):
        return ", ".join(f"{name} {plain(one)}" for name, one in value.items())
    return ", ".join(map(plain, value)) if isinstance(value, list) else str(value)
