"""Results and specs from strangers: mutations of good files, which are refused in a sentence or do no harm.

`run` makes any number of them from a seed. A file that is accepted is used for everything that results and specs are
used for: it is shown, compared, forecast from and put on a page beside a good one; a spec is built, and trained with.
"""

from __future__ import annotations

import copy
import io
import json
import random
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rehearse import metrics
from rehearse.errors import RehearseError
from rehearse.lab.campaign.store import read_result
from rehearse.lab.cli.console import PrintableConsole
from rehearse.lab.limits import enough_memory
from rehearse.lab.methods import METHODS, resolve
from rehearse.lab.paper.conditions import condition, rounding
from rehearse.lab.paper.costs import Costs
from rehearse.lab.report.compare import compare
from rehearse.lab.report.page import render
from rehearse.lab.report.rerun import rerun_command
from rehearse.lab.report.run_table import run_table
from rehearse.lab.report.runs import FinishedRun
from rehearse.lab.report.sentences import fallback_sentences, own_sentences, sentences
from rehearse.lab.report.tables import comparison_tables
from rehearse.lab.setup import spec_learner
from rehearse.lab.spec import Spec, load_spec_values
from rehearse.lab.streams import from_arrays
from rehearse.lab.streams.base import PassingStream, Stream
from rehearse.lab.within import over_time

from .result import Result

STREAM = "split-mnist-5k"
TIMED = {"every": 2, "step_cost": 2.5}  # fields of a spec that most do without
TOGETHER = 20  # accepted results on one page
TEXTS = ("", "\x1b[31m", "\x9b2J", "\ud800", "\u202e", "[/red]", "<script>alert(1)</script>", "a\nb", "x" * 30_000)
NUMBERS = (0, -1, 1, 3, 10**6, 2**31, 10**17, 2**70, 10**400, -(10**400), 0.5, 1e-320, 3e38, 1e308, -1e308)
ODD = (None, True, [], {}, [[]], [None], {"a": 1}, float("nan"), float("inf"), "deep", "deep table")
MILD = (
    "",
    "[/red]",
    "<script>alert(1)</script>",
    0,
    -1,
    1,
    3,
    10**6,
    2**31,
    0.5,
    1e-320,
    3e38,
    1e99,
    None,
    True,
    [],
    {},
)
DEEP = {"deep": "[" * 30_000 + "]" * 30_000, "deep table": '{"a":' * 30_000 + "1" + "}" * 30_000}


def run(tries: int, seed: int) -> Result:
    """Try that many hostile files, and describe each that did harm."""
    chance, failures, page = random.Random(seed), list[str](), list[FinishedRun]()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number in range(tries):
            attempt = _result if chance.random() < 0.6 else _spec
            try:
                attempt(chance, Path(folder), page)
                if len(page) == TOGETHER or (number == tries - 1 and page):
                    _check_text(render([_good_run(), *page]), "the page")
                    page.clear()
            except RehearseError:
                pass
            except Exception as problem:
                page.clear()
                failures.append(f"seed {seed}, try {number}, {attempt.__name__[1:]}: {problem!r:.300}")
    return Result(tries, failures)


def _result(chance: random.Random, folder: Path, page: list[FinishedRun]) -> None:
    value = _mutated(chance, _good(chance))
    text = _as_json(value)
    if chance.random() < 0.7:  # a careful stranger: what is derived from the rest fits it
        value = _consistent(value)
        text = _as_json(value)
    if chance.random() < 0.1:
        text = _damaged(chance, text)
    key = value.get("key") if isinstance(value, dict) else None
    path = folder / f"{key if isinstance(key, str) and key.isalnum() else 'a' * 16:.16}.json"
    path.write_bytes(text)
    try:
        result = read_result(path)
    except RehearseError as problem:
        if str(path) not in str(problem):
            raise AssertionError(f"the refusal does not name the file: {problem}") from problem
        raise
    _use(result)
    page.append(FinishedRun(Spec.from_dict(result["spec"]), result, path.with_suffix("")))


def _use(result: dict[str, Any]) -> None:
    """What `rehearse show`, `report` and `reproduce` do with a result."""
    good = _good_run().result
    words = [rerun_command(result), *sentences(result), *own_sentences(result), *fallback_sentences([result])]
    for text in (*words, condition(result), rounding(result)):
        _check_text(text, "a sentence")
    printed = io.StringIO()
    console = PrintableConsole(markup=False, file=printed, width=200)
    comparison = compare({"a": [result], "good": [good]})
    for table in (*comparison_tables(comparison, verbose=True), run_table("a run", result)):
        console.print(table)
    console.print("\x1b[2J".join(str(value) for value in result["environment"].values()))
    _check_text(printed.getvalue(), "what is printed")
    json.dumps(compare({"a": [result, good]}), allow_nan=False)
    Costs([result, good]).estimate(Spec.from_dict(good["spec"]))


def _check_text(text: str, what: str) -> None:
    text.encode()
    if any(not character.isprintable() for character in text.replace("\n", "")):
        raise AssertionError(f"{what} holds control characters")
    if "<script>alert" in text and what == "the page":
        raise AssertionError(f"{what} holds a script")


def _spec(chance: random.Random, folder: Path, _: list[FinishedRun]) -> None:
    method = chance.choice(list(METHODS))
    good = {"method": method, "stream": STREAM, "lr": 0.1, "options": dict(METHODS[method].options)} | TIMED
    values = _mutated(chance, good | dict.fromkeys(METHODS[method].uses & {"capacity", "budget", "updates"}, 10))
    toml = chance.random() < 0.3
    path = folder / ("spec.toml" if toml else "spec.json")
    text = _as_toml(values) if toml else _as_json(values)
    path.write_bytes(_damaged(chance, text) if chance.random() < 0.1 else text)
    try:
        values = load_spec_values(str(path))
    except RehearseError as problem:
        if str(path) not in str(problem):
            raise AssertionError(f"the refusal does not name the file: {problem}") from problem
        raise
    spec = resolve(str(values.get("method", "er")), str(values.get("stream", STREAM)), values)
    x = torch.zeros(40, 1, 8, 8, dtype=torch.uint8)
    stream: Stream = from_arrays(x, torch.arange(40) % 10, n_tasks=5)
    stream = stream if spec.step_cost is None else PassingStream(stream, spec.step_cost)
    learner = spec_learner(spec, stream)
    numbers = [value for value in (spec.updates, *spec.options.values()) if isinstance(value, int)]
    if all(number <= 1000 for number in numbers):  # or it takes long, which is no fault
        with enough_memory():
            learner.begin_task(stream.task_data(0), 0)
            for batch in list(stream)[:2]:
                learner.observe(batch.x, batch.y, batch.task)
            learner.predict(x)


# ----------------------------------------------------------------------------------------------------- good files


def _good(chance: random.Random) -> dict[str, Any]:
    """A result as runs leave it, of one of several methods."""
    method = chance.choice(["er", "er-mir", "gen-mir", "ae-mir", "iid-online"])
    seed = chance.randrange(3)
    timed = TIMED if chance.random() < 0.5 else {}
    spec = resolve(method, STREAM, {"seed": seed, "precision": "float32"} | timed)
    matrix = [[0.9 - 0.1 * (row - column) if column <= row else None for column in range(5)] for row in range(5)]
    searched = {"searches": 10, "fallbacks": 1, "measured": 9, "objective_before": 0.1, "objective_after": 0.2}
    sizes = {"codes": 10, "bytes": 100, "bytes_as_inputs": 1000, "autoencoder_bytes": 50}
    result = {
        "spec": spec.to_dict(),
        "metrics": {"pooled_accuracy": 0.7, "negative_elbo": 100.0},
        "extra": [{"negative_elbo": 100.0}],
        "matrices": {"test": matrix},
        "treatments": {"clean": {"metrics": {}, "matrices": {"test": copy.deepcopy(matrix)}}},
        "test_sizes": [100] * 5,
        "report": {"search": {"generator": searched}, "memory": sizes} if "mir" in method else {},
        "cost": {
            "seconds": 2.0, "cpu_seconds": 2.0, "steps_per_second": 9.0, "forward_passes": 3.0,
            "treatments_cpu_seconds": 0.5, "within_cpu_seconds": 0.5,
        },
        "environment": {"torch": "2", "processor": "one", "earlier": [{"processor": "two"}]},
    }  # fmt: skip
    if timed:
        result["within"] = [{"step": 2 * task + 2, "task": task, "test": row[:]} for task, row in enumerate(matrix)]
    return _consistent(result)


def _good_run() -> FinishedRun:
    result = _good(random.Random(0))
    return FinishedRun(Spec.from_dict(result["spec"]), result, Path("nowhere"))


def _consistent(value: Any) -> Any:
    """The same with the key of its spec and the metrics of its matrices, as far as there are any."""
    try:
        value["key"] = Spec.from_dict(value["spec"]).key
        for judged in (value, *value["treatments"].values()):
            matrix = np.array(judged["matrices"]["test"], dtype=np.float64)
            for name, metric in (("accuracy", metrics.average_accuracy), ("forgetting", metrics.forgetting)):
                judged["metrics"][name] = None if np.isnan(metric(matrix)) else metric(matrix)
        for name, measured in over_time(value.get("within", [])).items():
            value["metrics"][name] = None if np.isnan(measured) else measured
    except Exception:
        return value  # a mutation took what it is derived from
    return value


# ------------------------------------------------------------------------------------------------------ mutations


def _mutated(chance: random.Random, value: Any) -> Any:
    """A copy with one to three parts replaced, removed or added; half of them with what could pass for good."""
    value, kind = copy.deepcopy(value), MILD if chance.random() < 0.5 else (*TEXTS, *NUMBERS, *ODD)
    for _ in range(chance.choice([1, 1, 2, 3])):
        parent, key = chance.choice(list(_places(value)))
        how, hostile = chance.random(), copy.deepcopy(chance.choice(kind))
        if how < 0.8:
            parent[key] = hostile
        elif how < 0.9:
            del parent[key]
        elif isinstance(parent, dict):
            parent[chance.choice(TEXTS)] = hostile
        else:
            parent.append(hostile)
        if not value:
            break
    return value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every part of nested tables and lists, as what holds it and its key there."""
    for key in list(value) if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _as_json(value: Any) -> bytes:
    text = json.dumps(value)
    for name, deep in DEEP.items():
        text = text.replace(f'"{name}"', deep)
    return text.encode()


def _as_toml(values: Any) -> bytes:
    """TOML of a spec; values are written as in JSON, which TOML reads where it has them."""
    options = values.pop("options", None)
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in values.items()]
    if isinstance(options, dict):
        lines += ["[options]", *(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in options.items())]
    text = "\n".join(lines)
    for name, deep in DEEP.items():
        text = text.replace(f'"{name}"', deep)
    return text.encode()


def _damaged(chance: random.Random, text: bytes) -> bytes:
    """The bytes cut short, or with one of them replaced."""
    at = chance.randrange(len(text))
    return text[:at] if chance.random() < 0.5 else text[:at] + chance.randbytes(1) + text[at + 1 :]
