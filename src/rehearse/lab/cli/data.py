"""`rehearse data`: what data sets there are, where, and how to get them."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from ..report.tables import table_of
from ..streams.datasets import fetch as data
from ..streams.datasets.base import search_path
from .console import errors, output, print_tables

app = typer.Typer(help="Data sets on disk: list, fetch, verify, where.", no_args_is_help=True, rich_markup_mode="rich")

DataDir = Annotated[
    str | None,
    typer.Option("--data-dir", help="Directory of data sets, searched before $REHEARSE_DATA and the user's cache."),
]
Name = Annotated[str, typer.Argument(help="mnist, cifar10, miniimagenet or digits5k")]


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List the data sets, and where they are."""
    rows = [
        (status.name, status.title, str(status.place or "not found"), status.how) for status in data.list_data(data_dir)
    ]
    print_tables([table_of("", ("name", "content", "directory", "how to get it"), rows, 4)])


@app.command()
def fetch(name: Name, data_dir: DataDir = None) -> None:
    """Download a data set, checksums verified; an interrupted download resumes."""
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as progress:
        bars = {}

        def draw(file: str, done: int, total: int | None) -> None:
            if file not in bars:
                bars[file] = progress.add_task(file, total=total)
            progress.update(bars[file], completed=done, total=total)

        place = data.fetch(name, data_dir, draw)
    output.print(f"{name} is at {place}", soft_wrap=True)


@app.command()
def verify(name: Name, data_dir: DataDir = None) -> None:
    """Check every file of a data set against its published checksum."""
    checks = data.verify(name, data_dir)
    for check in checks:
        output.print(f"{check.path}: {check.problem or 'ok'}", soft_wrap=True)
    if any(check.problem for check in checks):
        raise typer.Exit(1)


@app.command()
def where(data_dir: DataDir = None) -> None:
    """Print the directories that are searched, in order."""
    for place in search_path(data_dir):
        output.print(str(place), soft_wrap=True)
