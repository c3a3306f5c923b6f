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
from ..report.runs import TRIALS
from ..setup import check_data
from . import shared
from .console import output, say
from .shared import of_execution, of_method

OUT = shared.RUNS / TRIALS


def tune_command(
    method: Annotated[str, typer.Argument(help="The method to tune; see `rehearse methods`.")],
    stream: Annotated[str, typer.Option(help="The stream whose validation split decides.")],
    trials: Annotated[int, typer.Option(help="Number of settings to try in all, earlier calls included.")] = 20,
    seeds: Annotated[int, typer.Option(help="Runs of each setting.")] = SEEDS,
    memory: Annotated[int | None, of_method(help="Stored samples per class, not searched.")] = None,
    samples_per_task: shared.SamplesPerTask = None,
    out: Annotated[Path, of_execution(help="Directory of trials and runs; the same command resumes.")] = OUT,
    jobs: shared.Jobs = None,
    data_dir: shared.DataDir = None,
    checkpoint_seconds: shared.CheckpointSeconds = Settings.checkpoint_seconds,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range", help="What to search: NAME=LOW:HIGH, or NAME=VALUE,VALUE,…", show_default="published values"
        ),
    ] = None,
    own: shared.Import = None,
) -> None:
    r"""Search for the setting with the best validation accuracy (extra rehearse-torch\[tune]).

    Writes it as a spec for `rehearse run --spec`: OUT/METHOD-STREAM.toml, with the fixed settings in its name.
    Test sets are not used.
    """
    find_method(method)
    fixed: dict[str, Any] = {"memory": memory, "samples_per_task": samples_per_task}
    fixed = {name: value for name, value in fixed.items() if value is not None}
    search = Search(method, stream, out, fixed, seeds, parse_ranges(ranges or []))
    check_data(search.specs({}), data_dir)
    settings = Settings(data_dir=data_dir, checkpoint_seconds=checkpoint_seconds)
    try:
        with closing(tune(search, trials, settings, jobs)) as events:  # type: ignore[type-var]
            for event in events:
                if isinstance(event, Tried):
                    say(_line(event))
                elif isinstance(event, Notice):
                    say(f"{label(event.spec)}: {event.message}")
    except KeyboardInterrupt:
        say(f"stopped; the same command resumes from {out}")
        raise typer.Exit(130) from None
    if not search.best_file.exists():
        say("no trial was completed; see the errors above", "red")
        raise typer.Exit(1)
    output.print(search.best_file.read_text("utf-8"), soft_wrap=True, end="")
    output.print(f"rehearse run --spec {search.best_file}", soft_wrap=True)


def _line(tried: Tried) -> str:
    chosen = ", ".join(f"{name} {value}" for name, value in tried.chosen.items())
    value = "" if tried.value is None else f", validation accuracy {100 * tried.value:.1f} %"
    return f"trial {tried.number} {tried.state}{value}{tried.error and ': '}{tried.error} ({chosen})"
