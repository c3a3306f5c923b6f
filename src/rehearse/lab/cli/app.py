"""The commands of `rehearse`, and what they print where something is refused."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from ... import __version__
from ...errors import RehearseError
from . import data, report, reproduce, run, show, tune
from .console import say

app = typer.Typer(
    name="rehearse",
    help="Compare methods of online continual learning by replay: run them, reproduce a paper, tune, report.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"rehearse {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


app.command("run")(run.run)
app.command("reproduce")(reproduce.reproduce)
app.command("tune")(tune.tune_command)
app.command("report")(report.report)
app.command("show")(show.show)
app.command("methods")(show.methods)
app.add_typer(data.app, name="data")


def call() -> None:
    """Run the command line; what `rehearse` or the file system refuses is one sentence and exit code 2."""
    try:
        app()
    except RehearseError as problem:
        say(f"rehearse: {problem}", "red")
        sys.exit(2)
    except OSError as problem:
        if problem.filename is None:
            raise
        say(f"rehearse: {problem.filename}: {problem.strerror}", "red")
        sys.exit(2)
