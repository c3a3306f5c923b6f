"""`rehearse reproduce`: the paper's tables and figures from one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..campaign.local import run_all
from ..campaign.store import Store
from ..errors import InvalidInput
from ..experiment import Settings
from ..paper.outcome import Outcome, Results, outcome
from ..paper.targets import GROUPS, TARGETS, find_targets
from ..report.progress import draw, label
from ..report.reproduction import outcome_csv, outcome_differences_table, outcome_markdown, outcome_table
from .console import errors, output


def reproduce(
    targets: Annotated[list[str], typer.Argument(help=f"What to reproduce: {', '.join([*TARGETS, *GROUPS])}.")],
    seeds: Annotated[int | None, typer.Option(help="Seeds 0 to N − 1; default: as many as published.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only the rows of this method; may be repeated.")] = None,
    out: Annotated[
        Path, typer.Option(help="Where results and checkpoints go; the same command goes on from there.")
    ] = Path("runs"),
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time, one process and one thread each; default: the cores.")
    ] = None,
    data_dir: Annotated[str | None, typer.Option(help="Where data sets are.")] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 30.0,
) -> None:
    """Run what a table or figure of the paper needs, and show ours beside the published numbers.

    Runs that have a result are not run again. Tables go to OUT/tables as CSV and Markdown.
    """
    if seeds is not None and seeds < 1:
        raise InvalidInput(f"seeds is {seeds}; at least one run is needed")
    chosen = [target.only(only) if only else target for target in find_targets(targets)]
    specs = list({spec.key: spec for target in chosen for spec in target.specs(seeds)}.values())
    store = Store(out)
    settings = Settings(data_dir=data_dir, checkpoint_seconds=checkpoint_seconds)
    try:
        _, failed = draw(run_all(specs, store, settings, jobs), specs, errors)
    except KeyboardInterrupt:
        errors.print(f"stopped; the same command goes on from {out}")
        raise typer.Exit(130) from None
    results = Results(store.results())
    for target in chosen:
        _show(outcome(target, results, seeds))
        _write(outcome(target, results, seeds), out / "tables")
    for event in failed:
        errors.print(f"{label(event.spec)} failed: {event.error}\n{event.detail}", style="red", markup=False)
    if failed:
        raise typer.Exit(1)


def _show(found: Outcome) -> None:
    output.print(outcome_table(found))
    differences = outcome_differences_table(found)
    if differences is not None:
        output.print(differences)
    if found.target.note:
        output.print(found.target.note, highlight=False, markup=False)


def _write(found: Outcome, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{found.target.name}.csv").write_text(outcome_csv(found), "utf-8")
    (folder / f"{found.target.name}.md").write_text(outcome_markdown(found), "utf-8")
