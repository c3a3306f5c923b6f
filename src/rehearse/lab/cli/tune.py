"""`rehearse tune`: hyper-parameters chosen on the validation split."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import typer

from ..campaign.events import Notice
from ..campaign.spaces import parse_ranges
from ..campaign.tune import SEEDS, Search, Tried, tune
from ..experiment import Settings
from ..methods import find_method
from ..report.progress import label
from .console import errors, output
from .engine import RUNS, CheckpointSeconds, DataDir, Import, Jobs, SamplesPerTask


def tune_command(
    method: Annotated[str, typer.Argument(help="The method whose settings are searched; see `rehearse methods`.")],
    stream: Annotated[str, typer.Option(help="The stream on whose validation split they are judged.")],
    trials: Annotated[int, typer.Option(help="How many settings to try in all, earlier calls included.")] = 20,
    seeds: Annotated[int, typer.Option(help="Runs of each setting.")] = SEEDS,
    memory: Annotated[int | None, typer.Option(help="Stored samples per class, not searched.")] = None,
    samples_per_task: SamplesPerTask = None,
    out: Annotated[Path, typer.Option(help="For trials and runs; the same command resumes.")] = RUNS / "tune",
    jobs: Jobs = None,
    data_dir: DataDir = None,
    checkpoint_seconds: CheckpointSeconds = Settings.checkpoint_seconds,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range", help="What to search: NAME=LOW:HIGH, or NAME=VALUE,VALUE,…; default: the published values."
        ),
    ] = None,
    own: Import = None,
) -> None:
    """Search the published values for the setting with the best validation accuracy (extra rehearse-torch[tune]).

    Writes it as OUT/METHOD-STREAM.toml, with what is fixed in its name too, which `rehearse run --spec` takes.
    Test sets play no part in the choice.
    """
    find_method(method)
    fixed: dict[str, Any] = {"memory": memory, "samples_per_task": samples_per_task}
    fixed = {name: value for name, value in fixed.items() if value is not None}
    search = Search(method, stream, out, fixed, seeds, parse_ranges(ranges or []))
    settings = Settings(data_dir=data_dir, checkpoint_seconds=checkpoint_seconds)
    try:
        with closing(tune(search, trials, settings, jobs)) as events:  # type: ignore[type-var]
            for event in events:
                if isinstance(event, Tried):
                    errors.print(_line(event), highlight=False, markup=False, soft_wrap=True)
                elif isinstance(event, Notice):
                    errors.print(f"{label(event.spec)}: {event.message}", highlight=False, markup=False)
    except KeyboardInterrupt:
        errors.print(f"stopped; the same command resumes from {out}", soft_wrap=True, highlight=False)
        raise typer.Exit(130) from None
    if not search.best_file.exists():
        errors.print("no setting could be tried to its end", style="red")
        raise typer.Exit(1)
    output.print(search.best_file.read_text("utf-8"), highlight=False, markup=False, soft_wrap=True, end="")
    output.print(f"rehearse run --spec {search.best_file}", highlight=False, markup=False, soft_wrap=True)


def _line(tried: Tried) -> str:
    chosen = ", ".join(f"{name} {value}" for name, value in tried.chosen.items())
    value = "" if tried.value is None else f", validation accuracy {100 * tried.value:.1f} %"
    return f"trial {tried.number} {tried.state}{value}{tried.error and ': '}{tried.error} ({chosen})"
