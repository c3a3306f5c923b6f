"""`rehearse report`: the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..report import page
from ..report.monitored import read_monitored
from ..report.runs import find_runs
from .console import output, warn_damaged
from .shared import RUNS, Import, Results


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUNS]...", help="Result files, keys, or directories to search.", show_default="--out"),
    ] = None,
    page_file: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    out: Results = RUNS,
    title: Annotated[str, typer.Option(help="The heading of the page.")] = page.TITLE,
    monitors: Annotated[
        list[Path] | None,
        typer.Option("--monitor", metavar="FILE", help="What a `Monitor` wrote with `JsonLines`; may be repeated."),
    ] = None,
    own: Import = None,
) -> None:
    """Write runs as one HTML page that needs no network: tables, charts, pictures, settings."""
    watched = [read_monitored(file) for file in monitors or []]
    found = find_runs(runs or [], out, warn_damaged) if runs or not watched else []
    page.write(found, page_file, title, watched)
    runs_are = "run is" if len(found) == 1 else "runs are"
    and_monitors = f", and {len(watched)} monitor{'s' if len(watched) > 1 else ''}" if watched else ""
    output.print(f"{len(found)} {runs_are} on {page_file}{and_monitors}", soft_wrap=True)
