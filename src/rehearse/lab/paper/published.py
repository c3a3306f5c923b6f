"""Every number that Aljundi et al. 2019 published in a table, as data, with where it stands.

The numbers are in published.toml beside this file, in the words and per cents of the paper; here they become
fractions (the generator's loss stays in nats) and find the run that would measure them again:

>>> cell = next(c for c in PUBLISHED["table1"].cells if (c.row, c.column) == ("ER-MIR", "MNIST Split"))
>>> cell.printed, cell.number.value, cell.number.se
('87.6 ± 0.7', 0.876, 0.0035)
>>> cell.setting.method, cell.setting.stream, cell.setting.memory
('er-mir', 'split-mnist', 50)

What a printed ± means was read from the released program: twice the standard error for everything but
generative replay, where it is the standard error itself. GEM and iCaRL came from other programs; theirs is
taken as the former. Figures 4 to 7 have no numbers in the paper's source and are not here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, get_args

from rehearse.errors import DataError
from rehearse.lab.spec import own_table
from rehearse.lab.statistics import Published

Metric = Literal["accuracy", "forgetting", "generator-loss"]
PER_CENT = ("accuracy", "forgetting")
KEEPS_MEMORIES = ("gem", "agem", "icarl", "er", "er-mir")
GENERATIVE = ("gen", "gen-mir")


@dataclass(frozen=True, slots=True)
class Setting:
    """What has to be run to measure a cell again, in the words of the command line; it can be a key.

    ``memory`` counts memories per class, None for a method that keeps none (so that one run answers every
    column of its row); ``updates`` per incoming batch, None where the method's own settings decide
    (generative replay); ``samples_per_task`` None means all there are; ``variant`` names settings of its own,
    which are a named spec: what an ablation takes away, say.
    """

    stream: str
    samples_per_task: int | None
    method: str
    variant: str | None
    memory: int | None
    updates: int | None


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table: where it stands, what is printed there, what that says, and the run behind it.

    ``number`` is None where the paper has none ("N/A", or an empty cell).
    """

    table: str
    row: str
    column: str
    metric: Metric
    printed: str
    number: Published | None
    setting: Setting


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the paper: what it shows, and how many runs are behind a number.

    ``runs`` is None where the paper does not say. ``note`` tells what a reader should know before comparing,
    the paper's disagreements with itself among it.
    """

    name: str
    caption: str
    note: str
    runs: int | None
    cells: tuple[Cell, ...]


def parse_number(printed: str, metric: Metric, standard_errors: int, runs: int | None = None) -> Published | None:
    """What a printed cell says: "87.6 ± 0.7" with a ± of two standard errors is 0.876, 0.007, 0.0035."""
    if printed in ("", "N/A"):
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?", printed)
    if not match:
        raise DataError(f"published.toml: {printed!r} is not a number like 87.6 ± 0.7, N/A or empty")
    unit = Decimal(100 if metric in PER_CENT else 1)  # decimal, so that 87.6 per cent is 0.876 to the last bit
    value = float(Decimal(match[1]) / unit)
    if match[2] is None:
        return Published(value, None, None, runs)
    plus_minus = Decimal(match[2]) / unit
    return Published(value, float(plus_minus), float(plus_minus / standard_errors), runs)


def _table(name: str, entry: dict[str, Any]) -> Table:
    return Table(
        name=name,
        caption=entry["caption"],
        note=entry["note"],
        runs=entry.get("runs"),
        cells=tuple(cell for row in entry["rows"] for cell in _cells(name, row, entry["columns"], entry.get("runs"))),
    )


def _cells(table: str, row: dict[str, Any], columns: list[dict[str, Any]], runs: int | None) -> Iterator[Cell]:
    for metric in get_args(Metric):
        for column, printed in zip(columns, row[metric], strict=True) if metric in row else ():
            number = parse_number(printed, metric, 1 if row["method"] in GENERATIVE else 2, runs)
            yield Cell(table, row["row"], column["name"], metric, printed, number, _setting(row, column))


def _setting(row: dict[str, Any], column: dict[str, Any]) -> Setting:
    method = row["method"]
    return Setting(
        stream=column["stream"],
        samples_per_task=column.get("samples_per_task"),
        method=method,
        variant=row.get("variant"),
        memory=column["memory"] if method in KEEPS_MEMORIES else None,
        updates=None if method in GENERATIVE else row.get("updates", column["updates"]),
    )


_FILE = own_table("paper/published.toml")
PUBLISHED: Mapping[str, Table] = {name: _table(name, entry) for name, entry in _FILE.items()}
