"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from ..statistics import FEWEST, Summary, summary
from ..within import TIMED

UNDEFINED = "–"
WORDS = ("verdict", "precision")
DIFFERENCES = ("", "accuracy", "forgetting", "seeds")
Method = Mapping[str, Any]
"""What `compare` reports of a method."""
RESULTS: Mapping[str, Callable[[Method], str]] = {
    "accuracy": lambda method: percent(method["accuracy"]),
    "forgetting": lambda method: percent(method["forgetting"]),
    "seeds": lambda method: str(len(method["runs"])),
    "CPU seconds": lambda method: number(method["cpu_seconds"]),
}
DETAILS: Mapping[str, Callable[[Method], str]] = {
    "median accuracy": lambda method: number(method["accuracy"] and 100 * method["accuracy"]["median"]),
    "pooled accuracy": lambda method: number(method["pooled_accuracy"] and 100 * method["pooled_accuracy"]["mean"]),
    "seconds": lambda method: number(method["seconds"]),
    "steps per second": lambda method: number(method["steps_per_second"], digits=0),
    "forward passes": lambda method: number(method["forward_passes"]),
    "precision": lambda method: ", ".join(method["precisions"]),
}
TIMES: Mapping[str, Callable[[Method], str]] = {
    name.replace("_", " "): lambda method, name=name: percent(method[name])  # type: ignore[misc]
    for name in TIMED
}
SPREAD = f"± half the 95 % t interval over seeds; the range for fewer than {FEWEST} seeds"
FORGETTING = "forgetting: best minus final accuracy, over all tasks but the last"
COSTS = (
    "forward passes: samples passed forward per incoming sample; CPU seconds do not count additional evaluations; "
    "seconds and CPU seconds are means over runs"
)


def with_spread(numbers: Summary, unit: float, digits: int = 1, *, sign: bool = False) -> str:
    """Mean ± half the 95 % interval; of two values the mean with both."""
    return f"{unit * numbers.mean:{'+' if sign else ''}.{digits}f} {spread(numbers, unit, digits, sign=sign)}".rstrip()


def spread(numbers: Summary, unit: float, digits: int = 1, *, sign: bool = False) -> str:
    """What is printed behind a mean: ± half the 95 % interval; the range where there are too few values for that."""
    if numbers.shown is not None:
        return f"± {unit * (numbers.shown[1] - numbers.shown[0]) / 2:.{digits}f}"
    low, high = (f"{unit * f(numbers.values):{'+' if sign else ''}.{digits}f}" for f in (min, max))
    return f"({low} to {high})" if numbers.n > 1 else ""


def percent(numbers: Mapping[str, Any] | None, *, sign: bool = False) -> str:
    """Mean and spread, in per cent."""
    return UNDEFINED if numbers is None else with_spread(summary(numbers["values"]), 100.0, sign=sign)


def table_of(title: str, head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, caption: str = "") -> Table:
    """A table whose first ``left`` columns, and those of `WORDS`, are words; the others are numbers, never broken."""
    look: Any = {"box": SIMPLE_HEAD, "padding": (0, 1, 0, 0), "show_edge": False, "title_justify": "left"}
    table, cells = Table(title=title, caption=caption or None, caption_justify="left", **look), [*rows]
    for place, name in enumerate(head):
        if place < left or name in WORDS:
            table.add_column(name, overflow="fold")
        else:
            width = max(map(len, [*name.split(), *(row[place] for row in cells)]), default=1)
            table.add_column(name, justify="right", width=width)
    for row in cells:
        table.add_row(*row)
    return table


def comparison_tables(comparison: Mapping[str, Any], *, verbose: bool = False) -> list[Table]:
    """What `compare` found: the results, if ``verbose`` their details, then what was measured within tasks, and pairs.

    The precision is a column of the results where methods were computed in several.
    """
    methods, seeds = comparison["methods"], len(comparison["seeds"])
    mixed = len({name for method in methods.values() for name in method["precisions"]}) > 1
    shown = {**RESULTS, **({"precision": DETAILS["precision"]} if mixed and not verbose else {})}

    def by_method(title: str, columns: Mapping[str, Callable[[Method], str]], caption: str = "") -> Table:
        rows = [[name, *(cell(method) for cell in columns.values())] for name, method in methods.items()]
        return table_of(title, ["method", *columns], rows, caption=caption)

    title = f"{comparison['stream']}, {seeds} seed{'s' if seeds != 1 else ''}, in %"
    made = [by_method(title, shown, f"{SPREAD}; {FORGETTING}")]
    made += [by_method("details", DETAILS, COSTS)] if verbose else []
    timed = any(method[name] is not None for method in methods.values() for name in TIMED)
    made += [by_method("over time, in %", TIMES)] if timed else []
    pairs = [
        (
            f"{row['method']} − {row['minus']}",
            *(percent(row[metric], sign=True) for metric in ("accuracy", "forgetting")),
            str(row["accuracy"]["n"] if row["accuracy"] else 0),
        )
        for row in comparison["differences"]
    ]
    made += [table_of("paired differences on the same seeds, in points", DIFFERENCES, pairs)] if pairs else []
    return made


def number(value: float | None, *, digits: int = 1) -> str:
    return UNDEFINED if value is None else f"{value:.{digits}f}"
