"""What `run`, `reproduce` and `tune` share: their options, and an engine that is drawn while it works."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from .console import errors

RUNS = Path("runs")
Import = Annotated[
    list[Path] | None,
    typer.Option("--import", callback=import_files, help="A file with methods, streams or networks of your own."),
]
Out = Annotated[Path, typer.Option(help="Where results and checkpoints go; the same command resumes from there.")]
Jobs = Annotated[int | None, typer.Option(help="Runs at a time, one process and one thread each; default: the cores.")]
Engine = Annotated[
    str, typer.Option(help="local: processes of this machine; ray: a Ray cluster (extra rehearse-torch[ray]).")
]
Address = Annotated[
    str | None, typer.Option(help="The Ray cluster's address; default: $RAY_ADDRESS, or a new one on this machine.")
]
DataDir = Annotated[str | None, typer.Option(help="Where data sets are.")]
SamplesPerTask = Annotated[int | None, typer.Option(help="Training samples per task; default: the paper's.")]
CheckpointSeconds = Annotated[float, typer.Option(help="Seconds between checkpoints.")]


def engine_events(
    specs: Sequence[Spec], store: Store, settings: Settings, jobs: int | None, engine: str, address: str | None
) -> Iterator[Event]:
    """Return the campaign on the engine of that name."""
    if engine == "ray":
        return cluster.run_all(specs, store, settings, jobs, address)
    if engine != "local":
        raise InvalidInput(f"there is no engine {engine!r}; there are local and ray")
    if address is not None:
        raise InvalidInput("--address is of --engine ray; the local engine has none")
    return local.run_all(specs, store, settings, jobs)


def follow(events: Iterator[Event], specs: Sequence[Spec], out: Path) -> tuple[list[Finished], list[Failed]]:
    """Draw a campaign to its end; Ctrl-C stops it and says how to resume."""
    try:
        return draw(events, specs, errors)
    except KeyboardInterrupt:
        errors.print(f"stopped; the same command resumes from {out}", soft_wrap=True, highlight=False)
        raise typer.Exit(130) from None


def report_failures(failed: Sequence[Failed]) -> None:
    """Report each error once, with the runs that it ended; exit code 1 if there are any."""
    by_error: dict[tuple[str, str], list[Failed]] = {}
    for event in failed:
        by_error.setdefault((event.error, event.detail), []).append(event)
    for (error, detail), events in by_error.items():
        more = f" and {len(events) - 1} more" if len(events) > 1 else ""
        sentence = f"{label(events[0].spec)}{more} failed: {error}"
        errors.print(f"{sentence}\n{detail}".rstrip(), style="red", markup=False, soft_wrap=True, highlight=False)
    if failed:
        raise typer.Exit(1)
