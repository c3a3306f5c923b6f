"""What `rehearse reproduce` knows by name: the paper's tables and figures, and our own, as lists of specs.

A target has entries, one for each place of its table: the run to make, over how many seeds, and the cells of the paper
that it measures again. The tables of the paper follow from its cells (`published`), most others stand in targets.toml,
and those of er-plus are computed (`strong`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, Final

from ..extensions import find
from ..methods import find_method
from ..spec import own_table
from ..streams import STREAMS
from . import strong
from .costs import ROWS_A_TASK
from .missing import MISSING, Stage
from .published import PUBLISHED, Cell, Setting, Table
from .target import Entry, Picture, Target

SEEDS = 20  # where the paper does not say how many


# ------------------------------------------------------------------------------------------------- the paper's tables


def _from_table(table: Table) -> Target:
    places: dict[tuple[str, str], dict[str, Cell]] = {}
    for cell in table.cells:
        places.setdefault((cell.row, cell.column), {})[cell.metric] = cell
    entries, written = [], _WRITTEN[table.name]
    for (row, column), cells in places.items():
        setting = next(iter(cells.values())).setting
        cells |= {ours: cells[printed] for ours, printed in written.get("beside", {}).items()}
        permuted = "permuted-" if setting.stream == "permuted-mnist" else ""
        name = None if setting.variant is None else f"{permuted}{setting.method}-{setting.variant}"
        entries.append(Entry(row, column, setting.method, setting.stream, run_settings(setting), name, cells))
    metrics = tuple(dict.fromkeys(cell.metric for cell in table.cells))
    target = Target(table.name, table.caption, tuple(entries), table.runs or SEEDS, metrics, note=table.note)
    return replace(target, **_said(written))


def run_settings(setting: Setting) -> dict[str, Any]:
    """A published setting in the fields of a spec, without what the stream does by itself."""
    settings: dict[str, Any] = {"memory": setting.memory, "updates": setting.updates}
    whole = STREAMS[setting.stream].samples_per_task or ROWS_A_TASK[setting.stream]
    if setting.samples_per_task != whole:  # all of them and none in particular are one run
        settings["samples_per_task"] = setting.samples_per_task
    return {name: value for name, value in settings.items() if value is not None}


# ------------------------------------------------------------------------------------------------------ targets.toml

_WRITTEN: Final = own_table("paper/targets.toml")
PARTS: Final[Mapping[str, tuple[str, ...]]] = {name: tuple(names) for name, names in _WRITTEN.pop("parts").items()}
_QUEUES: Final = {name: tuple(Stage(**one) for one in stages) for name, stages in _WRITTEN.pop("queues").items()}
AS_WRITTEN = ("title", "seeds", "note", "metrics", "pairs", "column_pairs", "retrievals", "sought", "one_precision")


def _written(name: str) -> Target:
    block = _with_likes(_WRITTEN[name])
    entries = tuple(
        _entry(block, column, row)
        for grid in block.get("grids", [block])
        for column, row in product(grid["columns"], grid["rows"])
    )
    pictures = tuple(Picture(**picture) for picture in block.get("pictures", []))
    return Target(name, entries=entries, pictures=pictures, **_said(block))


def _said(block: Mapping[str, Any]) -> dict[str, Any]:
    return {field: _tuples(block[field]) for field in AS_WRITTEN if field in block}


def _with_likes(block: dict[str, Any]) -> dict[str, Any]:
    return _with_likes(_WRITTEN[block["like"]]) | block if "like" in block else block


def _entry(block: Mapping[str, Any], column: Mapping[str, Any], row: Mapping[str, Any]) -> Entry:
    left_out = {"name", *row.get("without", [])}
    settings = {name: value for name, value in column.items() if name not in left_out}
    settings = {**block.get("settings", {}), **settings, **row}
    method, stream, spec, treatment, name, _ = (
        settings.pop(word, None) for word in ("method", "stream", "spec", "treatment", "row", "without")
    )
    if treatment == "clean" and "candidates" not in settings and not find_method(method).scores:
        treatment = None  # no candidates pass that would move the statistics: the run's own numbers
    table, place = block.get("printed", (None, None))
    printed = PUBLISHED[table].cells if table else ()
    cells: dict[str, Cell] = {cell.metric: cell for cell in printed if (cell.row, cell.column) == (name, place)}
    return Entry(name or method, column["name"], method, stream, settings, spec, cells, treatment)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


# ----------------------------------------------------------------------------------------------------------- by name

_OTHERS = [name for name in _WRITTEN if name not in PUBLISHED]
_ALL = (*map(_from_table, PUBLISHED.values()), *map(_written, _OTHERS), *strong.targets())
_KNOWN = {target.name: target for target in _ALL}


def _in_parts(of: str) -> Mapping[str, Target]:
    return {name: _KNOWN[name] for part, names in PARTS.items() if part.startswith(of) for name in names}


CONTROLS, STRONG = _in_parts("controls"), _in_parts("strong")
PAPER: Mapping[str, Target] = {
    name: target for name, target in _KNOWN.items() if name not in CONTROLS and name not in STRONG
}
TARGETS: Mapping[str, Target] = {**PAPER, **CONTROLS, **STRONG}
# `all` is what docs/reproduction.md shows, `strong` and `controls` what docs/what-makes-it-work.md does; the runs of
# the groups in QUEUES are queued by their value.
GROUPS: Mapping[str, tuple[str, ...]] = {
    "all": tuple(PAPER),
    "missing": MISSING,
    "controls": tuple(CONTROLS),
    "strong": tuple(STRONG),
    **{name: names for name, names in PARTS.items() if name not in TARGETS},
}
QUEUES: Mapping[str, Sequence[Stage]] = {
    **_QUEUES,
    **{part: _QUEUES["strong"] for part in PARTS if part.startswith("strong")},
}


def families() -> list[str]:
    """The names of all targets and groups in short: table*, controls*."""
    return list(dict.fromkeys(re.sub("^(table|figure|controls|strong).+", r"\1*", one) for one in [*TARGETS, *GROUPS]))


def find_targets(names: Sequence[str]) -> list[Target]:
    """The targets of these names, groups taken apart, each once."""
    found: dict[str, Target] = {}
    for name in names:
        known, listed = {**dict.fromkeys(TARGETS, (name,)), **GROUPS}, "`rehearse reproduce --help` lists them"
        for part in find(known, "target", name, listed):
            found[part] = TARGETS[part]
    return list(found.values())
