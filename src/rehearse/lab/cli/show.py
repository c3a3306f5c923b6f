"""`rehearse show` and `rehearse methods`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from ..campaign.store import is_stale, read_result
from ..methods import METHODS
from ..report.progress import label
from ..report.rerun import rerun_command
from ..report.run_table import run_table
from ..report.runs import find_run
from ..report.sentences import sentences
from ..report.tables import table_of
from ..spec import Spec
from .console import output, print_tables
from .shared import RUNS, Import, Results


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's key (its first digits suffice), or its file.")],
    out: Results = RUNS,
    own: Import = None,
) -> None:
    """Show one run: its settings, its numbers, and how to rerun it."""
    result = read_result(find_run(run, out))
    spec = Spec.from_dict(result["spec"])
    print_tables([run_table(f"{label(spec)} ({spec.key})", result)])
    for sentence in sentences(result):
        output.print(sentence, soft_wrap=True)
    if is_stale(spec):
        output.print("stale: the method or the stream has a newer version", style="red")
    output.print(f"rerun: {rerun_command(result)}", soft_wrap=True)


def methods(own: Import = None) -> None:
    """List the methods, and their own options, which --option sets."""
    rows = []
    for name, method in METHODS.items():
        options = ", ".join(f"{option}={json.dumps(value)}" for option, value in method.options.items())
        rows.append((name, method.summary, options or "–"))
    caption = "options with their defaults; the settings of a stream may override them"
    print_tables([table_of("", ("method", "what it does", "its own options"), rows, 3, caption)])
