"""What `run`, `reproduce` and `tune` share: their options, and an engine that is drawn while it works."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ...errors import InvalidInput
from ..campaign import local
from ..campaign import ray as cluster
from ..campaign.events import Event, Failed, Finished
from ..campaign.store import Store
from ..experiment import Settings
from ..extensions import import_files
from ..report.progress import draw, label
from ..spec import Spec
from .console import errors, say

RUNS = Path("runs")
of_stream = partial(typer.Option, rich_help_panel="Stream (defaults: those of --stream)")
of_method = partial(typer.Option, rich_help_panel="Method (defaults: the settings of --stream)")
of_execution = partial(typer.Option, rich_help_panel="Execution")
of_output = partial(typer.Option, rich_help_panel="Output")
Import = Annotated[
    list[Path] | None,
    typer.Option("--import", callback=import_files, help="A file with methods, streams or networks of your own."),
]
Results = Annotated[Path, typer.Option(help="The directory of the results.")]
Out = Annotated[Path, of_execution(help="Directory of results and checkpoints; the same command resumes from there.")]
Jobs = Annotated[int | None, of_execution(help="Runs at a time, each a process with one thread.", show_default="cores")]
Engine = Annotated[
    str, of_execution(help="local: processes on this machine; ray: a Ray cluster (extra rehearse-torch\\[ray]).")
]
Address = Annotated[
    str | None, of_execution(help="Address of the Ray cluster.", show_default="$RAY_ADDRESS, or a new local cluster")
]
DataDir = Annotated[
    str | None, of_execution(help="Directory of data sets.", show_default="$REHEARSE_DATA, or the user's cache")
]
SamplesPerTask = Annotated[int | None, of_stream(help="Training samples per task.")]
CheckpointSeconds = Annotated[float, of_execution(help="Seconds between checkpoints.")]
Verbose = Annotated[bool, of_output("--verbose", "-v", help="Print all columns.")]


def engine_events(
    specs: Sequence[Spec], store: Store, settings: Settings, jobs: int | None, engine: str, address: str | None
) -> Iterator[Event]:
    """Return the campaign on the engine of that name."""
    if engine == "ray":
        return cluster.run_all(specs, store, settings, jobs, address)
    if engine != "local":
        raise InvalidInput(f"there is no engine {engine!r}; there are local and ray")
    if address is not None:
        raise InvalidInput(f"--address {address} needs --engine ray")
    return local.run_all(specs, store, settings, jobs)


def follow(events: Iterator[Event], specs: Sequence[Spec], out: Path) -> tuple[list[Finished], list[Failed]]:
    """Draw a campaign to its end; Ctrl-C stops it and says how to resume."""
    try:
        return draw(events, specs, errors)
    except KeyboardInterrupt:
        say(f"stopped; the same command resumes from {out}")
        raise typer.Exit(130) from None


def report_failures(failed: Sequence[Failed]) -> None:
    """Report each error once, with the runs that it ended; exit code 1 if there are any."""
    by_error: dict[tuple[str, str], list[Failed]] = {}
    for event in failed:
        by_error.setdefault((event.error, event.detail), []).append(event)
    for (error, detail), events in by_error.items():
        more = f" and {len(events) - 1} more" if len(events) > 1 else ""
        sentence = f"{label(events[0].spec)}{more} failed: {error}"
        say(f"{sentence}\n{detail}".rstrip(), "red")
    if failed:
        raise typer.Exit(1)
