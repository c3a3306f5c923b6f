"""The page: every run of a report in one HTML file that needs no network, no server and, but for hovering, no script.

Charts are drawn as SVG when the page is made (``charts.py`` computes, ``assets/charts.html`` draws); the script adds
sorting, numbers on hover and by keyboard, and the change of colours. Whatever comes from runs passes the template's
escaping, and a content security policy lets nothing run or load but the page's own.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ... import __version__
from ...errors import DataError
from ...files import write_whole
from ..extras import needs
from ..limits import read_limited
from ..statistics import FEWEST, summary
from . import charts
from .charts import Chart
from .compare import own_cost
from .monitored import Monitored
from .rerun import rerun_command
from .runs import FinishedRun
from .sections import STYLES, Row, Section, sections, word
from .sentences import own_sentences, sentences
from .tables import spread

PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"
PICTURE_BYTES, PICTURE_PIXELS = 20_000_000, 50_000_000
TITLE = "Comparison of replay methods"

# What a mark of each style looks like around (0, 0): colours are not the only thing that tells series apart.
MARKERS = (
    "M-5,0A5,5 0 1 1 5,0A5,5 0 1 1 -5,0Z",
    "M-4.5,-4.5H4.5V4.5H-4.5Z",
    "M0,-6L6,0L0,6L-6,0Z",
    "M0,-6L5.5,4.5H-5.5Z",
    "M0,6L5.5,-4.5H-5.5Z",
    "M-2,-6H2V-2H6V2H2V6H-2V2H-6V-2H-2Z",
    "M-6,0L-3,-5H3L6,0L3,5H-3Z",
    "M-6,-3H6V3H-6Z",
)
assert len(MARKERS) == STYLES


@dataclass(frozen=True)
class Album:
    """The pictures of one run of a row; those of its other seeds stay in their folders."""

    label: str
    run: FinishedRun
    pictures: Mapping[str, str]
    """Its name -> its source."""
    damaged: Sequence[str]


def render(runs: Sequence[FinishedRun], title: str = TITLE, monitors: Sequence[Monitored] = ()) -> str:
    """The page of these runs and monitors, as text."""
    with needs("jinja2", "lab"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
        from markupsafe import Markup
    environment = Environment(
        loader=PackageLoader("rehearse.lab.report", "assets"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": _percent, "spread": _spread, "number": _number, "word": word}
    parts = sections(runs)
    script = _asset("page.js")
    rows = _once(parts)
    return environment.get_template("page.html").render(
        title=title,
        version=__version__,
        runs=runs,
        monitors=monitors,
        sections=[_chapter(section) for section in parts],
        rows=rows,
        albums=[album for row in rows if (album := _album(row)) is not None],
        environments=_environments(runs),
        markers=MARKERS,
        rerun_command=rerun_command,
        sentences=lambda result: [*own_sentences(result), *sentences(result)],
        own_cost=own_cost,
        width=charts.WIDTH,
        height=charts.HEIGHT,
        style=Markup(_asset("page.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _asset(name: str) -> str:
    return resources.files("rehearse.lab.report").joinpath("assets", name).read_text("utf-8")


def _chapter(section: Section) -> dict[str, Any]:
    """What the template needs of a section."""
    comparison = section.comparison
    methods, differences = comparison["methods"], comparison["differences"]
    accuracies = [method["accuracy"] for method in methods.values()]
    return {
        "stream": section.problem["stream"],
        "settings": _settings(section),
        "section": section,
        "methods": methods,
        "mixed": len({name for method in methods.values() for name in method["precisions"]}) > 1,
        "differences": [difference | {"reading": reading(difference)} for difference in differences],
        "strip": charts.strip_axis(accuracies, least=0.0, most=1.0),
        "difference_strip": charts.strip_axis(
            [difference["accuracy"] for difference in differences], least=-1.0, most=1.0, zero=True
        ),
        "charts": _charts(section.rows),
        "heat_maps": [charts.heat_map(row) for row in section.rows],
    }


def _charts(rows: Sequence[Row]) -> list[Chart]:
    drawn = [
        charts.seen_chart(rows),
        charts.time_chart(rows),
        charts.forgetting_chart(rows),
        charts.cost_chart(rows, "cpu_seconds", "Accuracy against time", "CPU seconds a run", "s"),
        charts.cost_chart(
            rows, "forward_passes", "Accuracy against work", "samples passed forward per incoming sample", "passes"
        ),
    ]
    return [chart for chart in drawn if chart.series]


def _settings(section: Section) -> list[str]:
    """The section's settings in words; what the stream decides by itself is left out."""
    problem = section.problem
    words = [] if section.capacity is None else [f"memory of {section.capacity:,} samples"]
    networks = sorted({row.spec.network for row in section.rows})
    words += [f"network{'s' if len(networks) > 1 else ''} {', '.join(networks)}", f"batches of {problem['batch_size']}"]
    names = {"tasks": "tasks", "samples_per_task": "samples per task"}
    words += [f"{problem[name]:,} {said}" for name, said in names.items() if problem[name] is not None]
    if problem["class_order"] is not None:
        words.append(f"class order {', '.join(map(str, problem['class_order']))}")
    if problem["split_seed"]:
        words.append(f"split seed {problem['split_seed']}")
    return words


def reading(difference: dict[str, Any]) -> str:
    """What a paired difference in accuracy says, in plain words."""
    numbers = difference["accuracy"]
    if numbers is None:
        return "no seed in common"
    known = summary(numbers["values"])
    if known.shown is None:
        return f"{known.n} seed{'s' if known.n > 1 else ''} in common: no interval below {FEWEST}"
    low, high = known.shown
    if low > 0:
        return f"{difference['method']} is more accurate"
    if high < 0:
        return f"{difference['minus']} is more accurate"
    return "no significant difference (95 %)"


def _once(parts: Iterable[Section]) -> list[Row]:
    """Every row once, though one without a memory stands in several sections."""
    rows = {row.runs[0].spec.key: row for section in parts for row in section.rows}
    return list(rows.values())


def _environments(runs: Iterable[FinishedRun]) -> list[str]:
    """The software and processors that made the runs, each once."""
    found = [run.result["environment"] for run in runs]
    lines = [f"torch {place.get('torch', '?')} on {place.get('processor', '?')}" for place in found]
    return sorted(set(lines))


def _album(row: Row) -> Album | None:
    for run in row.runs:
        files = sorted((run.folder / "images").glob("*.png"))
        if files:
            sources = {file.stem: _data_uri(file) for file in files}
            good = {name: source for name, source in sources.items() if source is not None}
            return Album(row.label, run, good, [name for name, source in sources.items() if source is None])
    return None


def _data_uri(path: Path) -> str | None:
    """Return a picture as part of the page; None if it is no PNG, or larger than a browser takes easily."""
    try:
        png = read_limited(path, PICTURE_BYTES)
    except (DataError, OSError):
        return None
    width, height = (int.from_bytes(png[start : start + 4], "big") for start in (len(PNG), len(PNG) + 4))
    if not png.startswith(PNG) or not 0 < width * height <= PICTURE_PIXELS:
        return None
    return "data:image/png;base64," + base64.b64encode(png).decode()


# ------------------------------------------------------------------------------------------------- numbers in words


def _percent(value: float | None, *, sign: bool = False) -> str:
    return "–" if value is None else f"{100 * value:{'+' if sign else ''}.1f}".replace("-", "−")


def _spread(numbers: Mapping[str, Any], *, sign: bool = False) -> str:
    """What is printed behind the mean, in per cent."""
    return spread(summary(numbers["values"]), 100.0, sign=sign).replace("-", "−")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def write(runs: Sequence[FinishedRun], path: Path, title: str = TITLE, monitors: Sequence[Monitored] = ()) -> None:
    """Write the page whole or not at all."""
    text = render(runs, title, monitors)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
