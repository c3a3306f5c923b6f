"""Evaluation within tasks, and streams that do not wait: nothing else about a run changes."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from made_results import made_result

from rehearse.errors import DataError
from rehearse.lab.campaign.store import Store
from rehearse.lab.experiment import Progress, Run, Settings, Stopped, execute
from rehearse.lab.methods import resolve
from rehearse.lab.paper.outcome import Results, cpu_seconds
from rehearse.lab.paper.target import Entry
from rehearse.lab.report.compare import compare
from rehearse.lab.report.page import render
from rehearse.lab.report.rerun import rerun_command
from rehearse.lab.report.runs import FinishedRun
from rehearse.lab.report.tables import comparison_tables
from rehearse.lab.spec import Spec
from rehearse.lab.within import TIMED
from sameness import assert_same

TINY = {"samples_per_task": 60, "capacity": 20, "precision": "float32"}
PLAIN = resolve("er", "split-mnist-5k", TINY)
TIMES = dataclasses.replace(PLAIN, every=4)
HURRIED = dataclasses.replace(PLAIN, step_cost=2.5)


def made(spec: Spec) -> tuple[Run, list[int]]:
    """A finished run, and the first labels of the batches that it learned from."""
    run = Run(spec)
    learned = [int(batch.y[0]) for batch, _, _ in run.steps()]
    return run, learned


@pytest.mark.parametrize("spec", [TIMES, HURRIED])
def test_a_run_resumes_bit_for_bit(spec: Spec, tmp_path: Path) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == 9:
            raise Stopped

    with pytest.raises(Stopped):
        execute(spec, tmp_path, Settings(checkpoint_steps=1), stop)
    steps: list[int] = []
    resumed = execute(spec, tmp_path, Settings(), lambda progress: steps.append(progress.step))
    assert steps[0] == 10
    whole = execute(spec, tmp_path / "whole")
    for part in ("matrices", "metrics", "report"):
        assert_same(resumed[part], whole[part])
    assert resumed.get("within") == whole.get("within")
    lines = [(place / "metrics.jsonl").read_text("utf-8") for place in (tmp_path, tmp_path / "whole")]
    assert lines[0] == lines[1]


def test_evaluation_within_tasks_changes_nothing_that_is_learned() -> None:
    (plain, _), (timed, _) = made(PLAIN), made(TIMES)
    assert_same(plain.learner.state_dict(), timed.learner.state_dict())
    for name, value in plain.result()["metrics"].items():
        assert timed.result()["metrics"][name] == value
    assert plain.result()["matrices"] == timed.result()["matrices"]
    assert plain.result().keys() == timed.result().keys() - {"within"}
    assert TIMED.keys() == timed.result()["metrics"].keys() - plain.result()["metrics"].keys()
    within = timed.result()["within"]
    assert [one["step"] for one in within] == [4, 6, 8, 12, 16, 18, 20, 24, 28, 30]
    assert [one["task"] for one in within] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    ends = [one["test"] for one in within if one["step"] % 6 == 0]
    assert ends == timed.result()["matrices"]["test"]
    for one in within:
        assert [value is None for value in one["test"]] == [task > one["task"] for task in range(5)]


def test_its_cost_is_told_apart_and_a_damaged_curve_is_refused(tmp_path: Path) -> None:
    result, store = execute(TIMES), Store(tmp_path)
    assert 0 < result["cost"]["within_cpu_seconds"] < result["cost"]["cpu_seconds"]
    assert cpu_seconds(result) == result["cost"]["cpu_seconds"] - result["cost"]["within_cpu_seconds"]
    store.put(TIMES, result)
    assert store.get(TIMES) == json.loads(json.dumps(result))
    for change in ({"step": None}, {"test": [0.0] * 5}, {"task": 9}):
        damaged = [{**result["within"][0], **change}, *result["within"][1:]]
        store.put(TIMES, {**result, "within": damaged})
        with pytest.raises(DataError, match="is no result of a run"):
            store.get(TIMES)


def test_the_key_of_a_run_without_either_is_what_it_was() -> None:
    assert not {"every", "step_cost"} & PLAIN.to_dict().keys()
    assert len({PLAIN.key, TIMES.key, HURRIED.key}) == 3
    assert TIMES.group == PLAIN.group != HURRIED.group
    for spec in (TIMES, HURRIED):
        assert Spec.from_dict(spec.to_dict()) == spec
        assert dataclasses.replace(spec, every=None, step_cost=None).key == PLAIN.key
    assert "--every 4" in rerun_command({"spec": TIMES.to_dict()})
    assert "--step-cost 2.5" in rerun_command({"spec": HURRIED.to_dict()})


def test_a_result_with_evaluation_within_tasks_serves_a_cell_without_and_not_the_reverse() -> None:
    cells = {every: Entry("", "", "er", PLAIN.stream, {**TINY, "every": every}) for every in (None, 4)}
    timed, plain = Results([made_result(TIMES, 0.7)]), Results([made_result(PLAIN)])
    assert [timed.of(cell)[0]["key"] for cell in cells.values()] == [TIMES.key, TIMES.key]
    assert [len(plain.of(cell)) for cell in cells.values()] == [1, 0]
    both = Results([made_result(TIMES, 0.7), made_result(PLAIN)])
    assert [both.of(cell)[0]["key"] for cell in cells.values()] == [PLAIN.key, TIMES.key]


def test_a_stream_that_does_not_wait_loses_what_arrives_meanwhile() -> None:
    everything, (run, learned) = made(PLAIN)[1], made(HURRIED)
    assert learned == [everything[math.floor(2.5 * step)] for step in range(12)]
    assert run.stream.length == run.position == len(learned) == math.ceil(30 / 2.5)
    assert None not in [run.result()["metrics"][name] for name in ("accuracy", "forgetting")]


def test_tables_and_page_show_it_where_it_was_measured(tmp_path: Path) -> None:
    results: dict[str, Any] = {"timed": execute(TIMES), "plain": execute(PLAIN)}
    _, table, _ = comparison_tables(compare({name: [result] for name, result in results.items()}))
    assert [column.header for column in table.columns][1:] == [name.replace("_", " ") for name in TIMED]
    assert len(comparison_tables(compare({"plain": [results["plain"]]}))) == 1
    pages = {
        name: render([FinishedRun(Spec.from_dict(result["spec"]), result, tmp_path)])
        for name, result in results.items()
    }
    assert 'data-chart="time"' in pages["timed"]
    assert "er, after 28 steps" in pages["timed"]
    assert 'data-chart="time"' not in pages["plain"]
