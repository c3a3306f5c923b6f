"""`rehearse reproduce`: the paper's tables and figures from one command."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import InvalidInput, MissingExtra
from ...files import replace_file, write_whole
from ...precision import PRECISIONS
from ..campaign import local
from ..campaign.events import Failed
from ..campaign.store import Store, results_in
from ..experiment import Settings
from ..methods import precision_of
from ..paper.costs import Costs
from ..paper.missing import Stage, queue, queue_lines
from ..paper.outcome import Outcome, Results, outcome, to_run
from ..paper.target import Target
from ..paper.targets import QUEUES, families, find_targets
from ..report import reproduction as tables
from ..report.figures import write_figure
from ..report.pictures import check_pictures, draw_figures
from ..setup import check_data, with_precision
from ..spec import Spec
from . import shared
from .console import output, print_tables, say, warn_damaged
from .shared import of_execution, of_output

PICTURES = "pictures"  # where runs that draw are, within OUT


def reproduce(
    targets: Annotated[list[str], typer.Argument(help=f"What to reproduce: {', '.join(families())}.")],
    seeds: Annotated[int | None, typer.Option(help="Number of runs of each row.", show_default="as published")] = None,
    first_seed: Annotated[int, typer.Option(help="The first seed; results of earlier ones are not shown.")] = 0,
    only: Annotated[list[str] | None, typer.Option(help="Only the rows of this method; may be repeated.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would run, its CPU hours and disk; run nothing.")
    ] = False,
    done: Annotated[
        list[Path] | None, typer.Option(help="Results that need not be computed again, a directory; may be repeated.")
    ] = None,
    from_results: Annotated[
        list[Path] | None,
        typer.Option(help="Train nothing: tables of the results in this directory; may be repeated."),
    ] = None,
    write: Annotated[
        Path | None, of_output(help="Write all tables into this Markdown file, figures into a folder beside it.")
    ] = None,
    fill: Annotated[
        list[Path] | None,
        of_output(help="Replace the marked tables of the targets in this file too; may be repeated."),
    ] = None,
    precision: Annotated[
        str,
        of_execution(
            help=f"{', '.join(PRECISIONS)}. Results in another precision are computed again; with auto, the "
            "best one of the processor, any result counts."
        ),
    ] = "auto",
    out: shared.Out = shared.RUNS,
    jobs: shared.Jobs = None,
    engine: shared.Engine = "local",
    address: shared.Address = None,
    data_dir: shared.DataDir = None,
    checkpoint_seconds: shared.CheckpointSeconds = Settings.checkpoint_seconds,
    verbose: shared.Verbose = False,
) -> None:
    """Run what a table or figure of the paper needs, and show the results beside the published numbers.

    Runs that have a result are not run again. Tables go to OUT/tables as CSV and Markdown, figures as PNG and SVG.
    The target missing runs what the tables and figures of the paper still lack, most valuable first.
    The target strong runs what er-plus is compared with, what decides most first.
    """
    if precision not in PRECISIONS:
        raise InvalidInput(f"precision is {precision!r}; it must be one of {', '.join(PRECISIONS)}")
    if seeds is not None and seeds < 1:
        raise InvalidInput(f"seeds is {seeds}; at least one run is needed")
    chosen = find_targets(targets)
    if only:
        chosen = [target.only(only) for target in [one for one in chosen if one.has(only)] or chosen]
    given = [*(from_results or []), *(done or [])]
    _check_given(given)
    places = given if from_results else [out, *given]
    asked = Asked(seeds, first_seed, precision, next((QUEUES[name] for name in targets if name in QUEUES), ()))
    results = list(results_in(places, warn_damaged))
    if dry_run:
        _foretell(chosen, asked, results, places)
        return
    failed: list[Failed] = []
    if from_results is None:
        finished, runs = {result["key"] for result in results}, [spec for _, spec in asked.runs(chosen, results)]
        drawings, drawn = asked.drawings(chosen), Store(out / PICTURES)
        lacking = [spec for spec in drawings if not drawn.path(spec).exists()]
        check_data([*lacking, *(spec for spec in runs if spec.key not in finished)], data_dir)
        settings = Settings(data_dir=data_dir, checkpoint_seconds=checkpoint_seconds)
        failed = _draw_pictures(chosen, drawings, out, replace(settings, on_task_end=draw_figures), jobs)
        store, finished = Store(out), finished | {event.spec.key for event in failed}
        specs = [spec for spec in runs if spec.key not in finished or store.path(spec).exists()]
        failed += shared.follow(shared.engine_events(specs, store, settings, jobs, engine, address), specs, out)[1]
        results = list(results_in(places, lambda _: None))
    else:
        _say_what_needs_a_run(chosen, out / "tables" if write is None else write.parent / "figures")
    found = asked.outcomes(chosen, results)
    for file in fill or []:
        write_whole(file, tables.filled(file.read_text("utf-8"), found))
    if write is not None:
        _write_page(found, write)
        say(f"{', '.join(one.target.name for one in found)} on {write}, figures in {write.parent / 'figures'}")
    else:
        for one in found:
            _write(one, out / "tables")
        for one in found:
            _show(one, verbose)
        say(f"tables and figures are in {out / 'tables'}")
    shared.report_failures(failed)


def _in(precision: str, spec: Spec) -> Spec:
    """The spec in this precision, unless it has one already."""
    found = with_precision(replace(spec, precision=precision) if spec.precision == "auto" else spec)
    return replace(found, precision=precision_of(found))


@dataclass(frozen=True)
class Asked:
    """Which runs of targets were asked for: their seeds and precision, and the stages that they are made in, if any."""

    seeds: int | None
    first_seed: int
    precision: str
    stages: Sequence[Stage] = ()

    def runs(self, targets: list[Target], results: list[dict[str, Any]]) -> list[tuple[str, Spec]]:
        """What the targets need, each run once, with its purpose; a finished one is the spec of its result."""
        found = Results(self._counting(results))
        if self.stages:
            planned = queue(self.stages, targets, found, Costs(results), self.seeds, self.first_seed)
        else:
            planned = [("", spec) for target in targets for spec in to_run(target, found, self.seeds, self.first_seed)]
        runs: dict[str, tuple[str, Spec]] = {}
        for purpose, spec in planned:
            resolved = _in(self.precision, spec)
            runs.setdefault(resolved.key, (purpose, resolved))
        return list(runs.values())

    def _counting(self, results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The results that need not be made again: all, or where a precision was asked for those in it."""

        def in_it(spec: Spec) -> bool:
            return precision_of(spec) == precision_of(replace(spec, precision=self.precision))

        return [one for one in results if self.precision == "auto" or in_it(Spec.from_dict(one["spec"]))]

    def drawings(self, targets: Iterable[Target]) -> list[Spec]:
        """The runs of the figures that are pictures, each once: results hold no pictures."""
        specs = [_in(self.precision, spec) for target in targets if target.pictures for spec in target.specs(1)]
        return list({spec.key: spec for spec in specs}.values())

    def outcomes(self, targets: list[Target], results: Iterable[dict[str, Any]]) -> list[Outcome]:
        """What the results of the seeds say."""
        wanted = Results(result for result in results if result["spec"]["seed"] >= self.first_seed)
        until = None if self.seeds is None else self.first_seed + self.seeds
        return [replace(outcome(one, wanted, until), seeds=self.seeds or one.seeds) for one in targets]


def _check_given(places: list[Path]) -> None:
    """Refuse directories without any result that somebody named: that is a slip, not an empty table."""
    for place in places:
        if next(Store(place).results(lambda _: None), None) is None:
            raise InvalidInput(f"there is no result in {place}; give a directory that `rehearse` wrote results to")


def _draw_pictures(
    targets: list[Target], specs: list[Spec], out: Path, settings: Settings, jobs: int | None
) -> list[Failed]:
    """The figures that are pictures need runs that draw them; their numbers count where there are none yet."""
    place, store, tables = out / PICTURES, Store(out), out / "tables"
    if not specs:
        return []
    check_pictures()
    finished, failed = shared.follow(local.run_all(specs, Store(place), settings, jobs), specs, out)
    tables.mkdir(parents=True, exist_ok=True)
    for event in finished:
        if store.get(event.spec) is None:
            store.put(event.spec, event.result)
        for picture in [one for target in targets for one in target.pictures if one.method == event.spec.method]:
            images, file = place / event.spec.key / "images", tables / f"{picture.file}.png"
            drawn = sorted(images.glob(f"task-*-{picture.drawn}.png"))
            if drawn:
                replace_file(file, drawn[-1].read_bytes())
                say(f"{picture.file} is drawn in {file}")
            else:
                say(f"{picture.file} is not drawn: {images} lacks it; remove {place}, and the run is made again")
    return failed


def _say_what_needs_a_run(targets: list[Target], folder: Path) -> None:
    """Results hold no pictures; those that lie in the folder are shown."""
    for target in targets:
        if target.pictures and not all((folder / f"{name}.png").exists() for name in target.drawings):
            say(f"{target.name} is a picture of a run, which results do not hold: `rehearse reproduce {target.name}`")


def _foretell(targets: list[Target], asked: Asked, results: list[dict[str, Any]], places: list[Path]) -> None:
    drawn = {result["key"] for result in results_in([place / PICTURES for place in places], lambda _: None)}
    costs, finished = Costs(results), {result["key"] for result in results}
    rows: list[tables.Forecast] = []
    everything: dict[str, Spec] = {}
    lacking: dict[str, Spec] = {}
    for target in targets:
        specs = {spec.key: spec for _, spec in replace(asked, stages=()).runs([target], results)}
        to_come = {key: spec for key, spec in specs.items() if key not in finished}
        to_draw = {spec.key: spec for spec in asked.drawings([target])}
        specs, to_come = specs | to_draw, to_come | {key: one for key, one in to_draw.items() if key not in drawn}
        everything |= specs
        lacking |= to_come
        estimates = [costs.estimate(spec) for spec in to_come.values()]
        rows.append((target.name, len(specs), len(specs) - len(estimates), estimates))
    if asked.stages:
        to_queue = [(purpose, spec) for purpose, spec in asked.runs(targets, results) if spec.key in lacking]
        for line in queue_lines(to_queue, targets, costs):
            output.print(line, soft_wrap=True)
    together = [costs.estimate(spec) for spec in lacking.values()]
    print_tables([tables.cost_table(rows, ("together", len(everything), len(everything) - len(together), together))])


def _show(found: Outcome, verbose: bool) -> None:
    print_tables(filter(None, (tables.outcome_table(found, verbose=verbose), tables.outcome_differences_table(found))))
    if found.target.note:
        output.print(found.target.note)


def _write(found: Outcome, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{found.target.name}.csv", tables.outcome_csv(found))
    write_whole(folder / f"{found.target.name}.md", tables.outcome_markdown(found))
    _draw(found, folder)


def _draw(found: Outcome, folder: Path) -> list[Path]:
    """The figure, or one sentence on standard error where nothing can draw it."""
    try:
        return write_figure(found, folder)
    except MissingExtra as problem:
        say(f"{found.target.name} is not drawn: {problem}")
        return []


def _write_page(found: list[Outcome], page: Path) -> None:
    folder = page.parent / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for one in found:
        _draw(one, folder)
    # pictures of runs are put there by hand from OUT/tables: they cannot be drawn from results
    files = {
        name: f"{name}{'.png' if one.target.pictures else '.svg'}" for one in found for name in one.target.drawings
    }
    drawn = {name: f"figures/{file}" for name, file in files.items() if (folder / file).exists()}
    write_whole(page, tables.reproduction_page(found, drawn))
