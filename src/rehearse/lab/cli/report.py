"""`rehearse report`: the page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..report import page
from ..report.runs import find_runs
from .console import output, warn_damaged
from .engine import RUNS, Import, Results


def report(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUNS]...", help="Result files, keys, or directories to search.", show_default="--out"),
    ] = None,
    page_file: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    out: Results = RUNS,
    title: Annotated[str, typer.Option(help="The heading of the page.")] = page.TITLE,
    own: Import = None,
) -> None:
    """Write runs as one HTML page that needs no network: tables, charts, pictures, settings."""
    found = find_runs(runs or [], out, warn_damaged)
    page.write(found, page_file, title)
    runs_are = "run is" if len(found) == 1 else "runs are"
    output.print(f"{len(found)} {runs_are} on {page_file}", soft_wrap=True)
