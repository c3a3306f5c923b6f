"""`rehearse run` and `rehearse show`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ...errors import InvalidInput
from ..campaign.store import Store, is_stale, read_result
from ..experiment import Settings
from ..methods import COMMON, METHODS, find_method, resolve
from ..report.compare import compare, low_ceilings, settings_that_differ
from ..report.pictures import check_pictures, draw_task
from ..report.progress import label
from ..report.rerun import rerun_command
from ..report.runs import find_run
from ..report.sentences import fallback_sentences, sentences
from ..report.tables import comparison_table, differences_table, over_time_table
from ..report.tensorboard import log_events
from ..setup import check, with_precision
from ..spec import Spec, load_spec_values
from ..streams import STREAMS
from .console import errors, output
from .engine import (
    RUNS,
    Address,
    CheckpointSeconds,
    DataDir,
    Engine,
    Import,
    Jobs,
    Out,
    SamplesPerTask,
    engine_events,
    follow,
    report_failures,
)

USUAL = ("er", "er-mir")
SEEDS = 5
DEFAULT_STREAM = "split-mnist-5k"


def run(
    methods: Annotated[
        list[str] | None, typer.Argument(help=f"Methods to compare: {', '.join(METHODS)}. Default: {' '.join(USUAL)}.")
    ] = None,
    stream: Annotated[
        str | None, typer.Option(help=f"The stream: {', '.join(STREAMS)}. Default: {DEFAULT_STREAM}.")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(help=f"Runs of each method: seeds 0 to N − 1. Default: {SEEDS}, or the seed that --spec names."),
    ] = None,
    first_seed: Annotated[int | None, typer.Option(help="Start counting seeds here (0).")] = None,
    memory: Annotated[
        int | None, typer.Option(help="Stored samples per class, M in the paper; the capacity is M × classes.")
    ] = None,
    capacity: Annotated[int | None, typer.Option(help="Stored samples in all, instead of --memory.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate α, of the step and of the look-ahead.")] = None,
    criterion: Annotated[
        str | None,
        typer.Option(help="mi1: loss after minus before the virtual step; mi2: minus the lowest loss so far."),
    ] = None,
    candidates: Annotated[
        str | None, typer.Option(help="C, the stored samples to score for each batch; 'all' scores the whole memory.")
    ] = None,
    budget: Annotated[int | None, typer.Option(help="B, the samples that are replayed with each batch.")] = None,
    updates: Annotated[int | None, typer.Option(help="Iterations for each incoming batch.")] = None,
    batchnorm: Annotated[
        str | None, typer.Option(help="Batch-norm mode: published, clean, joint, recalibrated or auto.")
    ] = None,
    include_current_task: Annotated[
        bool, typer.Option("--include-current-task", help="Replay samples of the current task too.")
    ] = False,
    task_free: Annotated[bool, typer.Option("--task-free", help="Hide the tasks from the learner.")] = False,
    samples_per_task: SamplesPerTask = None,
    tasks: Annotated[
        int | None, typer.Option(help="Tasks to divide the classes into, or permutations; default: the paper's.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help=f"Samples that arrive together ({Spec.batch_size}).")] = None,
    split_seed: Annotated[
        int | None, typer.Option(help="Decides the validation split and the permutations (0).")
    ] = None,
    every: Annotated[int | None, typer.Option(help="Evaluate within tasks too, after every N batches.")] = None,
    step_cost: Annotated[
        float | None,
        typer.Option(help="Batches that arrive during one step, of a stream that does not wait; the others are lost."),
    ] = None,
    class_order: Annotated[
        str | None, typer.Option(help="Which classes make which task, as in 5,3,0,1,…; labels stay as they are.")
    ] = None,
    network: Annotated[str | None, typer.Option(help="mlp, resnet18, …; default: the stream's.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="auto, float32 (exact and portable), bfloat16 or bfloat16-scoring.")
    ] = None,
    mir_on: Annotated[
        str | None, typer.Option(help="For gen-mir, whose interference is searched for: classifier, generator or both.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="A method's own option, NAME=VALUE; see `rehearse methods`."),
    ] = None,
    spec: Annotated[
        list[str] | None, typer.Option(help="A spec to start from: a TOML or JSON file, or a name.")
    ] = None,
    out: Out = RUNS,
    jobs: Jobs = None,
    engine: Engine = "local",
    address: Address = None,
    device: Annotated[str, typer.Option(help="cpu, or cuda (supported, untested).")] = "cpu",
    data_dir: DataDir = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Write which samples were replayed at each step, with their interference.")
    ] = False,
    images: Annotated[
        bool, typer.Option("--images", help="Draw replayed and imagined samples at each task's end, for the page.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write events for TensorBoard into each run's folder.")
    ] = False,
    checkpoint_seconds: CheckpointSeconds = Settings.checkpoint_seconds,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")] = False,
    own: Import = None,
) -> None:
    """Run one or several methods on a stream, over seeds, and compare them.

    Without arguments: er and er-mir on the embedded digits. Options override the paper's settings for the stream.
    """
    if spec and len(spec) > 1:
        raise InvalidInput(f"--spec is for one spec, not for {', '.join(spec)}; run them one after the other")
    base = load_spec_values(spec[0]) if spec else {}
    if spec and methods and base.get("method", methods[0]) not in methods:
        raise InvalidInput(f"the spec {spec[0]} is of {base['method']}, and {', '.join(methods)} is asked for")
    names = methods or ([base["method"]] if "method" in base else list(USUAL))
    stream = stream or base.get("stream", DEFAULT_STREAM)
    if seeds is None and first_seed is None and "seed" in base:
        seeds, first_seed = 1, base["seed"]
    seeds, first_seed = SEEDS if seeds is None else seeds, first_seed or 0
    if seeds < 1:
        raise InvalidInput(f"seeds is {seeds}; at least one run is needed")
    chosen: dict[str, Any] = {
        "memory": memory, "capacity": capacity, "lr": lr, "criterion": criterion, "candidates": _candidates(candidates),
        "budget": budget, "updates": updates, "batchnorm": batchnorm, "samples_per_task": samples_per_task,
        "tasks": tasks, "batch_size": batch_size, "split_seed": split_seed, "class_order": _numbers(class_order),
        "network": network, "precision": precision, "exclude_current_task": False if include_current_task else None,
        "task_free": True if task_free else None, "every": every, "step_cost": step_cost,
    }  # fmt: skip
    chosen = {name: value for name, value in chosen.items() if value is not None}
    _refuse_unused(names, chosen)
    if trace and not any("capacity" in find_method(name).uses for name in names):
        raise InvalidInput(f"{', '.join(names)} does not use trace: it stores no samples")
    options = _options([*(option or []), *([f"mir_on={mir_on}"] if mir_on else [])])
    # candidates are for the methods that score them; plain replay passes some by itself where no such method is named
    scoring = {name for name in names if find_method(name).scores and "candidates" in find_method(name).uses}
    said = [base, chosen]
    without = [{field: value for field, value in layer.items() if field != "candidates"} for layer in said]
    layers = {name: said if name in scoring or not scoring else without for name in names}
    specs = {
        name: [
            resolve(name, stream, *layers[name], {"options": _of(name, options, names), "seed": seed})
            for seed in range(first_seed, first_seed + seeds)
        ]
        for name in layers
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
    everything = [one for group in specs.values() for one in group]
    first = [group[0] for group in specs.values()]
    unfinished = [one for one in first if Store(out).get(with_precision(one, device)) is None]
    if unfinished:
        check(unfinished, data_dir, device)
    events = engine_events(everything, Store(out), settings, jobs, engine, address)
    events = log_events(events, Store(out)) if tensorboard else events
    finished, failed = follow(events, everything, out)
    again = [Store(out).folder(event.spec) for event in finished if event.again]
    kept = len([folder for folder in again if trace or (images and not (folder / "images").is_dir())])
    if kept:
        sentence = (
            f"{kept} of these runs had a result already and were not run again: they are neither traced nor drawn; "
        )
        errors.print(f"{sentence}choose another --out for that", style="yellow", soft_wrap=True, highlight=False)
    groups = {name: [event.result for event in finished if event.spec.method == name] for name in specs}
    comparison = compare(
        {name: sorted(group, key=lambda r: r["spec"]["seed"]) for name, group in groups.items() if group}
    )
    if as_json:
        print(json.dumps(comparison, allow_nan=False))
    elif finished:
        output.print(comparison_table(comparison))
        for more in filter(None, (over_time_table(comparison), differences_table(comparison))):
            output.print(more)
        for sentence in (settings_that_differ({one.method: one for one in first}), *low_ceilings(comparison)):
            if sentence:
                output.print(sentence, highlight=False, markup=False)
        place = "" if out == RUNS else f" --out {shlex.quote(str(out))}"
        sentence = f"results are in {out}; `rehearse show {finished[0].spec.key[:8]}{place}` shows the first run"
        errors.print(sentence, soft_wrap=True, highlight=False, markup=False)
    for sentence in fallback_sentences(event.result for event in finished):
        errors.print(sentence, style="yellow", soft_wrap=True, highlight=False, markup=False)
    report_failures(failed)


def show(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run's key (its first digits suffice), or its file.")],
    out: Annotated[Path, typer.Option(help="Where results are.")] = RUNS,
    own: Import = None,
) -> None:
    """Show one run: its settings, its numbers, and how to rerun it."""
    result = read_result(find_run(run, out))
    spec = Spec.from_dict(result["spec"])
    table = Table(title=Text(f"{label(spec)} ({spec.key})"), show_header=False)
    for name, value in spec.to_dict().items():
        if value not in (None, {}, ""):
            table.add_row(name, Text(json.dumps(value)))
    for name, value in result["metrics"].items():
        table.add_row(Text(name), "undefined" if value is None else f"{value:.4f}", style="bold")
    for name, value in (result["cost"] | result["environment"]).items():
        table.add_row(Text(name), Text(f"{value:.1f}" if isinstance(value, float) else str(value)), style="dim")
    output.print(table)
    for sentence in sentences(result):
        output.print(sentence, soft_wrap=True, highlight=False, markup=False)
    if is_stale(spec):
        output.print("stale: its method or stream has a newer version by now", style="red")
    output.print(f"rerun: {rerun_command(result)}", soft_wrap=True, highlight=False, markup=False)


def methods(own: Import = None) -> None:
    """List the methods, and the options of their own that --option sets."""
    table = Table(caption="options with their defaults; the settings of a stream may say otherwise")
    for column in ("method", "what it does", "options of its own"):
        table.add_column(column, overflow="fold")
    for name, method in METHODS.items():
        options = ", ".join(f"{option}={json.dumps(value)}" for option, value in method.options.items())
        table.add_row(name, method.summary, options or "–")
    output.print(table)


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
            raise InvalidInput(f"{', '.join(names)} has no option {option!r}; `rehearse methods` lists what there is")
    return {name: value for name, value in options.items() if name in known[method]}


def _refuse_unused(names: list[str], chosen: dict[str, Any]) -> None:
    """Refuse a setting that none of the methods uses."""
    used = frozenset().union(*(find_method(name).uses for name in names))
    for name in chosen:
        field = "capacity" if name == "memory" else name
        if field in COMMON and field not in used:
            raise InvalidInput(f"{', '.join(names)} does not use {name.replace('_', '-')}")
