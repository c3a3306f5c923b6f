"""The targets of `rehearse reproduce strong`, their order, and the page's four answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from made_results import made_result

from pages.comparisons import comparisons
from pages.control_figures import CONTROL_FIGURES
from pages.strong import Point, four_answers, on_frontier, points
from rehearse.lab.methods import METHODS, Problem, build, prepare_for, resolve
from rehearse.lab.networks import make_network
from rehearse.lab.paper.costs import Costs
from rehearse.lab.paper.missing import queue
from rehearse.lab.paper.outcome import Outcome, Results, outcome, to_run
from rehearse.lab.paper.strong import INTERFERED, STAGES, STREAMS, UNIFORM
from rehearse.lab.paper.targets import GROUPS, PAPER, PARTS, STRONG, find_targets
from rehearse.lab.report.figures import write_figure
from rehearse.lab.spec import Spec
from rehearse.lab.statistics import summary
from rehearse.lab.within import over_time

RETRIEVAL, DECIDING = STRONG["strong-retrieval-split-cifar10"], "30 replayed, augmented"


def measured(name: str, cpu: Callable[[str], float] = lambda _: 100.0, seeds: int = 2, **more: Any) -> Outcome:
    """A target with made results of two seeds, or ``seeds``, in bfloat16."""
    results = []
    for number, entry in enumerate(STRONG[name].available()):
        for seed in range(seeds):
            result = made_result(
                dataclasses.replace(entry.spec(seed), precision="bfloat16"), 0.5 + number / 100 + seed / 50
            )
            result["cost"]["cpu_seconds"] = cpu(entry.row)
            results.append(result | more)
    return outcome(STRONG[name], Results(results))


def test_a_part_answers_a_question_and_the_paper_has_none_of_them() -> None:
    assert [name for part in PARTS if part.startswith("strong") for name in PARTS[part]] == list(STRONG)
    assert tuple(STRONG) == GROUPS["strong"]
    assert not STRONG.keys() & {*PAPER, *GROUPS["missing"], *GROUPS["controls"]}
    assert [target.name for target in find_targets(["strong-waiting"])] == list(PARTS["strong-waiting"])


@pytest.mark.parametrize("name", STRONG)
def test_every_cell_can_be_built_and_every_pair_is_of_cells_that_there_are(name: str) -> None:
    target = STRONG[name]
    places = [(e.row, e.column) for e in target.entries]
    assert len(set(places)) == len(places)
    assert {row for pair in target.pairs for row in pair} <= {row for row, _ in places}
    for entry in target.available():
        spec = entry.spec()
        shape = (3, 32, 32) if spec.stream == "split-cifar10" else (1, 28, 28)
        make = lambda spec=spec, shape=shape: make_network(spec.network, classes=10, input_shape=shape)  # noqa: E731
        assert build(spec, Problem(10, 5, shape, prepare_for("unit"), make)).memory is not None or name[7:12] == "front"
    assert [entry.method for entry in target.entries if entry.missing] in ([], ["scr"] * 3)


def test_a_part_is_left_out_of_er_plus_or_added_to_er_and_nothing_else_changes() -> None:
    entries = {(e.row, e.column): e.spec() for e in STRONG["strong-parts-cifar10"].entries}
    column = STREAMS["split-cifar10"]["title"]
    plus = resolve("er-plus", "split-cifar10")
    assert entries["er-plus", column] == plus
    without = entries["er-plus without its replayed batch", column]
    assert without == dataclasses.replace(plus, budget=10)
    without = entries["er-plus without augmentation", column]
    assert without == dataclasses.replace(plus, options={**plus.options, "augment": "none"})
    alone, plain = entries["ER with augmentation", column], entries["ER", column]
    assert alone.options["augment"] == plus.options["augment"]
    assert (alone.options["average"], alone.options["predict_by"]) == (0, "head")
    for name in ("budget", "batchnorm", "exclude_current_task", "lr", "updates"):
        assert getattr(alone, name) == getattr(plain, name)


def test_retrievals_differ_in_what_is_retrieved_alone_and_at_equal_cost_in_how_much() -> None:
    specs = {e.row: e.spec() for e in RETRIEVAL.entries if e.column == DECIDING}
    assert {specs[row].budget for row in (UNIFORM, INTERFERED, "highest loss")} == {30}
    assert specs[INTERFERED].options == specs[UNIFORM].options
    more = specs[f"uniform at the cost of {INTERFERED}"]
    assert more.budget > 2 * 30
    assert dataclasses.replace(more, budget=30) == specs[UNIFORM]


def test_a_step_costs_what_the_method_costs_times_the_rate_and_never_less_than_a_batch() -> None:
    specs = {(e.row, e.column): e.spec() for e in STRONG["strong-waiting-split-cifar10"].entries}
    costs = STREAMS["split-cifar10"]["costs"]
    for (row, column), spec in specs.items():
        rate = 0 if column == "it waits" else int(column.split()[0])
        batches = round(rate * costs[row], 1)
        assert spec.step_cost == (batches if batches > 1 else None)


def test_the_frontier_has_every_method_that_learns_from_the_stream_as_it_comes() -> None:
    rows = {e.row for target in find_targets(["strong-frontier"]) for e in target.entries}
    assert {name for name, method in METHODS.items() if not method.iid_epochs} <= rows


def test_the_queue_is_everything_once_and_what_decides_comes_first() -> None:
    targets = list(STRONG.values())
    planned = queue(STAGES, targets, Results([]), Costs([]), None)
    keys = [spec.key for _, spec in planned]
    assert len(keys) == len(set(keys))
    assert set(keys) == {spec.key for target in targets for spec in target.specs()}
    assert [purpose for purpose, _ in groupby(planned, itemgetter(0))] == [stage.purpose for stage in STAGES]
    learner = [spec for purpose, spec in planned if purpose == STAGES[0].purpose]
    assert {spec.method for spec in learner} == {"er-plus"}
    assert [spec.seed for spec in learner] == list(range(15))
    first = [spec for purpose, spec in planned if purpose == STAGES[2].purpose]
    deciding = {entry.spec(seed).key for entry in RETRIEVAL.entries if entry.column == DECIDING for seed in range(5)}
    assert {spec.key for spec in first} == deciding
    assert [spec.seed for spec in first] == sorted(spec.seed for spec in first)


def test_cells_that_decide_less_ask_for_fewer_seeds() -> None:
    runs: dict[str, set[int]] = {}
    columns = {entry.spec().group: entry.column for entry in RETRIEVAL.entries}
    for spec in to_run(RETRIEVAL, Results([])):
        runs.setdefault(columns[spec.group], set()).add(spec.seed)
    assert {column: len(seeds) for column, seeds in runs.items()} == {
        column: 15 if column == DECIDING else 5 for column in dict.fromkeys(e.column for e in RETRIEVAL.entries)
    }


def test_all_numbers_of_a_target_are_of_one_precision() -> None:
    target = STRONG["strong-memory"]
    one, other = (
        entry for entry in target.entries if (entry.row, entry.column) in (("er", "M=50"), ("er-plus", "M=50"))
    )

    def result(entry: Any, seed: int, precision: str) -> dict[str, Any]:
        return made_result(dataclasses.replace(entry.spec(seed), precision=precision))

    half = [result(entry, seed, "bfloat16") for entry in (one, other) for seed in range(2)]
    found = outcome(target, Results([*half, result(one, 0, "float32"), result(one, 5, "float32")]))
    assert {p for line in found.lines for p in line.precisions} == {"bfloat16"}
    assert sorted(found.runs["er", "M=50"]) == [0, 1]
    mixed = outcome(dataclasses.replace(target, one_precision=False), Results([*half, result(one, 5, "float32")]))
    assert sorted(mixed.runs["er", "M=50"]) == [0, 1, 5]


# ------------------------------------------------------------------------------------------------------------ the page


def test_without_results_every_answer_says_so() -> None:
    text = four_answers([outcome(target, Results([])) for target in STRONG.values()])
    assert text.count("### ") == 4
    cells = [line.split(" | ")[-1].strip(" |") for line in text.splitlines() if line.startswith("| Split CIFAR-10 | ")]
    assert {"not run"} < set(cells) <= {"not run", "–"}
    assert "inconclusive, about" not in text


def test_an_underpowered_difference_says_how_many_seeds_it_needs() -> None:
    text = four_answers([measured("strong-retrieval-split-cifar10")])
    (line,) = [one for one in text.splitlines() if f"{DECIDING} | equal samples | {INTERFERED} − {UNIFORM}" in one]
    assert "+2.0 (+2.0 to +2.0) (n = 2), inconclusive, too few seeds" in line
    noisy = measured("strong-retrieval-split-cifar10", seeds=4)
    runs = [result for found in noisy.runs.values() for result in found.values()]
    for number, result in enumerate(runs):
        result["metrics"] = {**result["metrics"], "accuracy": 0.5 + 0.1 * (number % 3)}
    text = four_answers([outcome(RETRIEVAL, Results(runs))])
    assert "inconclusive, about" in text
    assert "seeds needed" in text


def test_a_method_is_on_the_frontier_unless_another_is_as_accurate_for_no_more() -> None:
    found = {
        name: Point(seconds, summary([accuracy]))
        for name, seconds, accuracy in (("a", 1, 0.5), ("b", 2, 0.4), ("c", 3, 0.6), ("d", 3, 0.7), ("e", 4, 0.7))
    }
    assert on_frontier(found) == ["a", "d"]


def test_the_frontier_is_of_one_kind_of_processor_and_names_who_is_left_out() -> None:
    name = "strong-frontier-split-cifar10"
    full = measured(name, cpu=lambda row: 100.0 + len(row))
    runs = [result for found in full.runs.values() for result in found.values()]
    for result in full.runs["gem", "Split CIFAR-10"].values():
        result["environment"] = {**result["environment"], "processor_model": "second"}
    moved = outcome(STRONG[name], Results(runs))
    condition, found = points(moved)
    assert "(first)" in condition
    assert [row for row, _ in moved.runs if row not in found] == ["gem"]
    assert "| gem |" in four_answers([moved])


@pytest.mark.parametrize("name", ["strong-parts-mnist", "strong-retrieval-split-mnist", "strong-frontier-split-mnist"])
def test_its_figures_are_drawn_from_results(name: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra lab is not installed")
    svg = write_figure(measured(name), tmp_path, CONTROL_FIGURES[name])[1].read_text("utf-8")
    shown = {
        "strong-retrieval-split-mnist": "most interfered, equal CPU seconds",
        "strong-parts-mnist": "ER with its updates",
    }
    assert shown.get(name, "er-plus, 1 update") in svg


def test_accuracy_over_time_is_drawn_and_its_metrics_are_in_the_table(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra lab is not installed")
    within = [
        {"step": 10 * n, "task": n // 3, "test": [0.5 if j <= n // 3 else None for j in range(5)]} for n in range(15)
    ]
    name = "strong-time"
    found = measured(name, within=within)
    for runs in found.runs.values():
        for result in runs.values():
            result["metrics"] |= over_time(within)
    found = outcome(STRONG[name], Results(result for runs in found.runs.values() for result in runs.values()))
    gaps = [line.ours.mean for line in found.lines if line.metric == "stability_gap" and line.ours is not None]
    assert gaps == [0.0] * 4
    assert "er-plus-mir (n = 2)" in write_figure(found, tmp_path, CONTROL_FIGURES[name])[1].read_text("utf-8")
    assert all(
        isinstance(Spec.from_dict(result["spec"]).every, int) for r in found.runs.values() for result in r.values()
    )
    assert list(comparisons(found))
