"""`rehearse run`: methods on a stream, over seeds, side by side."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ...errors import InvalidInput
from ..campaign.events import Finished
from ..campaign.store import Store
from ..experiment import Settings
from ..extensions import did_you_mean
from ..methods import COMMON, METHODS, find_method, resolve
from ..report.compare import compare, low_ceilings, settings_that_differ
from ..report.pictures import check_pictures, draw_task
from ..report.rerun import FIELDS
from ..report.sentences import fallback_sentences
from ..report.tables import comparison_tables
from ..report.tensorboard import log_events
from ..setup import check, with_precision
from ..spec import Spec, load_spec_values
from ..streams import STREAMS
from . import shared
from .console import output, print_tables, say
from .shared import of_execution, of_method, of_output, of_stream

USUAL = ("er", "er-mir")
SEEDS = 5
DEFAULT_STREAM = "split-mnist-5k"
SETTINGS = ("memory", *FIELDS, "split_seed", "class_order", "exclude_current_task", "task_free")


def _candidates(text: str | None) -> int | str | None:
    if text is None or text == "all":
        return text
    if not text.isdigit():
        raise InvalidInput(f"candidates is {text!r}; it must be a number, or all")
    return int(text)


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidInput(f"class-order is {text!r}; give the classes as numbers with commas, as in 3,1,0,2") from None


def _included(given: bool | None) -> bool | None:
    """The value of ``exclude_current_task``."""
    return False if given else None


def run(
    context: typer.Context,
    methods: Annotated[
        list[str] | None,
        typer.Argument(help=f"Methods to compare: {', '.join(METHODS)}.", show_default=" ".join(USUAL)),
    ] = None,
    stream: Annotated[
        str | None, typer.Option(help=f"The stream: {', '.join(STREAMS)}.", show_default=DEFAULT_STREAM)
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of runs of each method.", show_default=f"{SEEDS}, or the one seed that --spec names"),
    ] = None,
    first_seed: Annotated[int | None, typer.Option(help="The first seed.", show_default="0")] = None,
    spec: Annotated[
        list[str] | None, typer.Option(help="A spec to start from: a TOML or JSON file, or a name.")
    ] = None,
    own: shared.Import = None,
    samples_per_task: shared.SamplesPerTask = None,
    tasks: Annotated[int | None, of_stream(help="Tasks to divide the classes into, or permutations.")] = None,
    batch_size: Annotated[
        int | None, of_stream(help="Samples in an incoming batch.", show_default=str(Spec.batch_size))
    ] = None,
    class_order: Annotated[
        str | None,
        of_stream(
            callback=_numbers,
            help="Which classes make which task, as in 5,3,0,1,…; labels do not change.",
            show_default="0,1,2,…",
        ),
    ] = None,
    split_seed: Annotated[
        int | None, of_stream(help="Seed of the validation split and the permutations.", show_default="0")
    ] = None,
    step_cost: Annotated[
        float | None,
        of_stream(
            help="Batches that arrive during one step, of a stream that does not wait; the others are lost.",
            show_default="the stream waits",
        ),
    ] = None,
    task_free: Annotated[bool | None, of_stream("--task-free", help="Hide the tasks from the learner.")] = None,
    memory: Annotated[
        int | None, of_method(help="Stored samples per class, M in the paper; the capacity is M × classes.")
    ] = None,
    capacity: Annotated[int | None, of_method(help="Stored samples in all, instead of --memory.")] = None,
    lr: Annotated[float | None, of_method(help="Learning rate α, of the step and of the look-ahead.")] = None,
    budget: Annotated[int | None, of_method(help="B, the number of samples to replay with each batch.")] = None,
    updates: Annotated[int | None, of_method(help="Iterations for each incoming batch.")] = None,
    criterion: Annotated[
        str | None,
        of_method(help="mi1: loss after minus before the virtual step; mi2: loss after minus the lowest so far."),
    ] = None,
    candidates: Annotated[
        str | None,
        of_method(
            callback=_candidates, help="C, the stored samples to score for each batch; 'all' scores the whole memory."
        ),
    ] = None,
    exclude_current_task: Annotated[
        bool | None,
        of_method("--include-current-task", callback=_included, help="Replay samples of the current task too."),
    ] = None,
    network: Annotated[str | None, of_method(help="mlp, resnet18, …")] = None,
    batchnorm: Annotated[
        str | None, of_method(help="Batch-norm mode: published, clean, joint, recalibrated or auto.")
    ] = None,
    mir_on: Annotated[
        str | None,
        of_method(help="What gen-mir maximizes the interference of: classifier, generator or both."),
    ] = None,
    option: Annotated[
        list[str] | None,
        of_method("--option", "-o", help="An option of a method, NAME=VALUE; see `rehearse methods`."),
    ] = None,
    out: shared.Out = shared.RUNS,
    jobs: shared.Jobs = None,
    engine: shared.Engine = "local",
    address: shared.Address = None,
    device: Annotated[str, of_execution(help="cpu, or cuda (supported, untested).")] = "cpu",
    precision: Annotated[
        str | None,
        of_execution(
            help="auto, float32 (exact and portable), bfloat16 or bfloat16-scoring.", show_default=Spec.precision
        ),
    ] = None,
    data_dir: shared.DataDir = None,
    checkpoint_seconds: shared.CheckpointSeconds = Settings.checkpoint_seconds,
    verbose: shared.Verbose = False,
    as_json: Annotated[bool, of_output("--json", help="Print one JSON document on standard output.")] = False,
    every: Annotated[
        int | None, of_output(help="Evaluate after every N batches too.", show_default="after each task only")
    ] = None,
    trace: Annotated[
        bool, of_output("--trace", help="Write which samples were replayed at each step, with their interference.")
    ] = False,
    images: Annotated[
        bool, of_output("--images", help="Draw replayed and generated samples after each task, for the page.")
    ] = False,
    tensorboard: Annotated[
        bool, of_output("--tensorboard", help="Write events for TensorBoard into each run's folder.")
    ] = False,
) -> None:
    """Run one or several methods on a stream, over seeds, and compare them.

    Without arguments: er and er-mir on the embedded digits. Options override the paper's settings for the stream.
    """
    if spec and len(spec) > 1:
        raise InvalidInput(f"--spec takes one spec, not {', '.join(spec)}; run them one after the other")
    base = load_spec_values(spec[0]) if spec else {}
    if spec and methods and base.get("method", methods[0]) not in methods:
        raise InvalidInput(f"--spec {spec[0]} is a spec of {base['method']}, not of {', '.join(methods)}")
    names = methods or ([base["method"]] if "method" in base else list(USUAL))
    if seeds is None and first_seed is None and "seed" in base:
        seeds, first_seed = 1, base["seed"]
    seeds, first_seed = SEEDS if seeds is None else seeds, first_seed or 0
    if seeds < 1:
        raise InvalidInput(f"seeds is {seeds}; at least one run is needed")
    chosen = {name: value for name in SETTINGS if (value := context.params[name]) is not None}
    _refuse_unused(names, chosen)
    if trace and not any("capacity" in find_method(name).uses for name in names):
        raise InvalidInput(f"{', '.join(names)} does not use trace: it stores no samples")
    options = _options([*(option or []), *([f"mir_on={mir_on}"] if mir_on else [])])
    # candidates are for the methods that score them; plain replay passes some by itself where no such method is named
    scoring = {name for name in names if find_method(name).scores and "candidates" in find_method(name).uses}
    said = [base, chosen]
    without = [{field: value for field, value in layer.items() if field != "candidates"} for layer in said]
    specs = {
        name: [
            resolve(
                name,
                stream or base.get("stream", DEFAULT_STREAM),
                *(said if name in scoring or not scoring else without),
                {"options": _of(name, options, names), "seed": seed},
            )
            for seed in range(first_seed, first_seed + seeds)
        ]
        for name in dict.fromkeys(names)
    }
    if images:
        check_pictures()
    settings = Settings(
        data_dir=data_dir,
        device=device,
        trace=trace,
        checkpoint_seconds=checkpoint_seconds,
        on_task_end=draw_task if images else None,
    )
    store, everything = Store(out), [one for group in specs.values() for one in group]
    unfinished = {one.method: one for one in everything if store.get(with_precision(one, device)) is None}
    if unfinished:
        check([*unfinished.values()], data_dir, device)
    events = shared.engine_events(everything, store, settings, jobs, engine, address)
    events = log_events(events, store) if tensorboard else events
    finished, failed = shared.follow(events, everything, out)
    again = [store.folder(event.spec) for event in finished if event.again]
    kept = len([folder for folder in again if trace or (images and not (folder / "images").is_dir())])
    if kept:
        say(f"runs neither traced nor drawn: {kept}; their results are in {out}; choose another --out", "yellow")
    groups = {name: [event.result for event in finished if event.spec.method == name] for name in specs}
    comparison = compare(
        {name: sorted(group, key=lambda r: r["spec"]["seed"]) for name, group in groups.items() if group}
    )
    if as_json:
        print(json.dumps(comparison, allow_nan=False))
    elif finished:
        differ = settings_that_differ({name: group[0] for name, group in specs.items()})
        _print(comparison, differ, finished, out, verbose)
    for sentence in fallback_sentences(event.result for event in finished):
        say(sentence, "yellow")
    shared.report_failures(failed)


def _print(comparison: dict[str, Any], differ: str, finished: Sequence[Finished], out: Path, verbose: bool) -> None:
    print_tables(comparison_tables(comparison, verbose=verbose))
    for sentence in filter(None, (differ, *low_ceilings(comparison))):
        output.print(sentence)
    place = "" if out == shared.RUNS else f" --out {shlex.quote(str(out))}"
    say(f"results are in {out}; `rehearse show {finished[0].spec.key[:8]}{place}` shows the first run")


def _options(words: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InvalidInput(f"option {word!r} is not of the form NAME=VALUE")
        try:
            options[name] = json.loads(text)
        except (ValueError, RecursionError):
            options[name] = text
    return options


def _of(method: str, options: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """Return the options of this method; one that none of the methods has is refused."""
    known = {name: find_method(name).options for name in names}
    for option in options:
        if not any(option in own for own in known.values()):
            near = did_you_mean(option, {one for own in known.values() for one in own})
            raise InvalidInput(f"{', '.join(names)} has no option {option!r}{near}; `rehearse methods` lists them")
    return {name: value for name, value in options.items() if name in known[method]}


def _refuse_unused(names: list[str], chosen: dict[str, Any]) -> None:
    """Refuse a setting that none of the methods uses."""
    used = frozenset().union(*(find_method(name).uses for name in names))
    for name in chosen:
        field = "capacity" if name == "memory" else name
        if field in COMMON and field not in used:
            raise InvalidInput(f"{', '.join(names)} does not use {name.replace('_', '-')}")
