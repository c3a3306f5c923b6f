"""The targets of `rehearse reproduce`, what results say about them, and what they would cost."""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from fnmatch import fnmatch
from typing import Any

import pytest
from made_results import made_result

from rehearse.errors import InvalidInput
from rehearse.lab.experiment import with_precision
from rehearse.lab.methods import resolve
from rehearse.lab.paper.costs import Costs, rows, work
from rehearse.lab.paper.outcome import Outcome, Results, cpu_seconds, outcome, to_run
from rehearse.lab.paper.published import PUBLISHED
from rehearse.lab.paper.target import Entry, Target
from rehearse.lab.paper.targets import GROUPS, TARGETS, families, find_targets
from rehearse.lab.report.compare import settings_that_differ
from rehearse.lab.report.reproduction import (
    counted,
    filled,
    judgement,
    outcome_csv,
    outcome_differences_table,
    outcome_markdown,
    outcome_table,
    reproduction_page,
    units,
)
from rehearse.lab.spec import named_specs
from rehearse.lab.statistics import Verdict, summary


def entry(target: str, row: str, column: str) -> Entry:
    (found,) = [e for e in TARGETS[target].entries if (e.row, e.column) == (row, column)]
    return found


def test_every_table_of_the_paper_is_a_target_with_all_its_cells() -> None:
    for name, table in PUBLISHED.items():
        cells = [cell for e in TARGETS[name].entries for metric, cell in e.cells.items() if metric == cell.metric]
        assert sorted(map(id, cells)) == sorted(map(id, table.cells))
    named = {"figure2", "figure3", "figure4", "figure5", "figure6", "figure7"}
    named |= {"learning-rate", "methods", "batchnorm", "generative-controls"}
    assert set(GROUPS["all"]) == PUBLISHED.keys() | named
    assert TARGETS.keys() == {*GROUPS["all"], *GROUPS["controls"], *GROUPS["strong"]}


@pytest.mark.parametrize("name", TARGETS)
def test_every_entry_resolves(name: str) -> None:
    target = TARGETS[name]
    specs = target.specs(2)
    assert {spec.seed for spec in specs} <= {0, 1}
    assert len({spec.key for spec in specs}) == len(specs)
    assert [spec.seed for spec in specs] == sorted(spec.seed for spec in specs)


def test_published_settings_become_the_papers_runs() -> None:
    er = entry("table2", "ER", "M=20").spec(4)
    assert (er.stream, er.capacity, er.updates, er.seed, er.samples_per_task) == ("split-cifar10", 200, 1, 4, None)
    assert entry("table3", "ER", "5").spec().updates == 5
    assert entry("cifar10-1k", "ER-res", "M=50").spec().samples_per_task == 1000
    # one run answers all the columns of a method without memories, and one run serves two tables
    assert entry("table7", "fine-tuning", "M=20").spec() == entry("table7", "fine-tuning", "M=100").spec()
    assert entry("table1", "ER", "MNIST Split").spec() == entry("table7", "ER", "M=50").spec()
    assert entry("learning-rate", "ER-MIR", "lr 0.05").spec() == entry("table1", "ER-MIR", "MNIST Split").spec()
    assert entry("table5", "GEN", "Permuted MNIST").spec().options["latent"] == 100
    assert TARGETS["table8"].seeds == 10
    assert TARGETS["table2"].seeds == 15


def told(result: dict[str, Any], clean: float, recalibrated: float) -> dict[str, Any]:
    """The result with the accuracies of the two other treatments beside."""
    accuracies = {"clean": clean, "recalibrated": recalibrated}
    return result | {
        "treatments": {name: {"metrics": {"accuracy": value}, "matrices": {}} for name, value in accuracies.items()}
    }


def test_three_treatments_of_batch_norm_are_read_from_the_runs_of_table_2() -> None:
    for row in ("ER", "ER-MIR"):
        runs = [entry("batchnorm", row, name).spec() for name in ("published", "clean", "recalibrated")]
        assert set(map(str, runs)) == {str(entry("table2", row, "M=100").spec())}
        assert entry("batchnorm", row, "joint").spec().batchnorm == "joint"
    mir = entry("batchnorm", "ER-MIR", "published")
    result = told(made_result(mir.spec(0), 0.4), 0.3, 0.5)
    found = outcome(TARGETS["batchnorm"], Results([result]))
    accuracy = {k: [r["metrics"]["accuracy"] for r in runs.values()] for k, runs in found.runs.items() if runs}
    assert accuracy == {
        ("ER-MIR", "published"): [0.4], ("ER-MIR", "clean"): [0.3], ("ER-MIR", "recalibrated"): [0.5]
    }  # fmt: skip


def test_a_treatment_that_a_result_does_not_tell_is_run_alone_and_found() -> None:
    target = TARGETS["batchnorm"].only(["er-mir"])
    published, alone = entry("batchnorm", "ER-MIR", "published"), entry("batchnorm", "ER-MIR", "recalibrated").alone(0)
    earlier = [made_result(published.spec(0), 0.4), told(made_result(published.spec(1), 0.4), 0.3, 0.5)]
    modes = [(spec.seed, spec.batchnorm) for spec in to_run(target, Results(earlier), seeds=2)]
    assert sorted(modes) == [
        (0, "clean"), (0, "joint"), (0, "published"), (0, "recalibrated"), (1, "joint"), (1, "published")
    ]  # fmt: skip
    found = outcome(target, Results([*earlier, made_result(alone, 0.6)]))
    runs = found.runs["ER-MIR", "recalibrated"]
    assert {seed: result["metrics"]["accuracy"] for seed, result in runs.items()} == {0: 0.6, 1: 0.5}
    assert list(found.runs["ER-MIR", "clean"]) == [1]


def test_costs_leave_out_the_evaluation_of_other_treatments() -> None:
    result = made_result(SPEC_ER.spec(0))
    assert cpu_seconds(result) == 10.0
    assert cpu_seconds(result | {"cost": result["cost"] | {"treatments_cpu_seconds": 4.0}}) == 6.0


def test_only_some_methods() -> None:
    target = TARGETS["table1"].only(["er", "no-such"])
    assert {e.method for e in target.entries} == {"er"}
    with pytest.raises(InvalidInput, match=r"table1 has no method no-such; it has iid-online"):
        TARGETS["table1"].only(["no-such"])
    assert [target.name for target in find_targets(["table7", "table7", "table1"])] == ["table7", "table1"]
    with pytest.raises(
        InvalidInput,
        match=r"there is no target 'controls-hybird' \(did you mean controls-hybrid\?\); `rehearse reproduce --help`",
    ):
        find_targets(["controls-hybird"])


def test_the_help_names_all_targets_by_few_families() -> None:
    found = families()
    assert {"table*", "figure*", "controls*", "strong*", "all", "missing"} <= set(found)
    assert len(found) < 20
    names = [*TARGETS, *GROUPS]
    assert all(any(fnmatch(name, one) for one in found) for name in names)
    assert all(any(fnmatch(name, one) for name in names) for one in found)


SPEC_ER, SPEC_MIR = (entry("table1", row, "MNIST Split") for row in ("ER", "ER-MIR"))


def table1_results() -> list[dict[str, object]]:
    er = [made_result(SPEC_ER.spec(seed), 0.80 + seed / 100, 0.15) for seed in range(4)]
    mir = [made_result(SPEC_MIR.spec(seed), 0.86 + seed / 50, 0.07) for seed in range(1, 4)]
    return [*er, *mir]


def lines_verdict(found: Outcome) -> Verdict:
    """Of the first line that has one."""
    return next(line.verdict for line in found.lines if line.verdict is not None)


def test_an_outcome_has_ours_the_published_and_the_verdict() -> None:
    found = outcome(TARGETS["table1"], Results(table1_results()))
    lines = {(line.entry.row, line.entry.column, line.metric): line for line in found.lines}
    er = lines["ER", "MNIST Split", "accuracy"]
    assert er.ours == summary([0.80 + seed / 100 for seed in range(4)])
    assert er.published is not None
    assert er.published.printed == "82.1 ± 1.5"
    assert er.verdict is not None
    assert (er.judgement, er.verdict.word) == ("inconclusive", "inconclusive")  # ± 2.3 points from four runs
    assert er.reference is not None
    assert (er.reference.mean, er.reference.n) == (pytest.approx(0.826), 20)
    assert er.cpu_seconds == 10.0
    assert lines["ER", "Permuted MNIST", "accuracy"].judgement == "not run"
    (difference,) = [d for d in found.differences if d.metric == "accuracy"]
    assert (difference.later, difference.earlier, difference.column) == ("ER-MIR", "ER", "MNIST Split")
    assert difference.ours.values == pytest.approx([0.07, 0.08, 0.09])  # seeds 1, 2, 3


def test_only_the_first_seeds_count() -> None:
    found = outcome(TARGETS["table1"], Results(table1_results()), seeds=2)
    (er,) = [line for line in found.lines if line.entry is SPEC_ER and line.metric == "accuracy"]
    assert er.ours is not None
    assert er.ours.values == (0.80, 0.81)


def test_stale_results_are_counted_and_not_used() -> None:
    old = dataclasses.replace(SPEC_ER.spec(0), method_version=0)
    target = Target("t", "t", (SPEC_ER,), 3, ("accuracy",))
    (line,) = outcome(target, Results([made_result(old)])).lines
    assert (line.judgement, line.stale, line.ours) == ("stale", 1, None)
    (line,) = outcome(target, Results([made_result(old), made_result(SPEC_ER.spec(1))])).lines
    assert (line.stale, line.ours and line.ours.n) == (1, 1)


def test_a_seed_in_two_precisions_counts_once_as_float32() -> None:
    half = dataclasses.replace(SPEC_ER.spec(0), precision="bfloat16")
    full = dataclasses.replace(SPEC_ER.spec(0), precision="float32")
    target = Target("t", "t", (SPEC_ER,), 3, ("accuracy",))
    (line,) = outcome(target, Results([made_result(half, 0.1), made_result(full, 0.7)])).lines
    assert line.ours is not None
    assert line.ours.values == (0.7,)
    assert line.precisions == ("float32",)


def test_every_seed_counts_unless_somebody_says_how_many() -> None:
    target = Target("t", "t", (SPEC_ER,), 2, ("accuracy",))
    results = Results([made_result(SPEC_ER.spec(seed), 0.7 + seed / 10) for seed in range(3)])
    (line,) = outcome(target, results).lines
    assert line.ours is not None
    assert line.ours.n == 3
    assert "| 3 |" in outcome_markdown(outcome(target, results))


def test_a_seed_that_has_a_result_in_another_precision_is_not_run_again() -> None:
    for row in ("ER", "ER-MIR"):
        one = entry("table2", row, "M=100")
        target = Target("t", "t", (one,), 2, ("accuracy",))
        half = dataclasses.replace(one.spec(0), precision="bfloat16-scoring")
        first, second = to_run(target, Results([made_result(half)]))
        assert (with_precision(first), second) == (half, one.spec(1))


def test_a_result_that_tells_a_treatment_counts_for_it_though_one_in_float32_does_not() -> None:
    mir = dataclasses.replace(entry("table2", "ER-MIR", "M=100"), treatment="recalibrated")
    told = {"treatments": {"recalibrated": {"metrics": {"accuracy": 0.5}, "matrices": {}}}}
    half = made_result(dataclasses.replace(mir.spec(0), precision="bfloat16-scoring")) | told
    full = made_result(dataclasses.replace(mir.spec(0), precision="float32"))
    target = Target("t", "t", (mir,), 1, ("accuracy",))
    (line,) = outcome(target, Results([half, full])).lines
    assert line.ours is not None
    assert line.ours.values == (0.5,)
    assert [spec.key for spec in to_run(target, Results([half, full]))] == [half["key"]]
    assert to_run(target, Results([full])) == [mir.alone(0)]


def test_mixed_precisions_are_labelled_and_those_of_scoring_only_where_something_is_scored() -> None:
    er, mir = entry("table2", "ER", "M=100"), entry("table2", "ER-MIR", "M=100")
    target = Target("t", "t", (er, mir), 2, ("accuracy",))
    precisions = ("float32", "bfloat16-scoring")

    def found(*methods: Entry) -> Outcome:
        made = [made_result(dataclasses.replace(e.spec(s), precision=precisions[s])) for e in methods for s in (0, 1)]
        return outcome(target, Results(made))

    both = found(er, mir)
    assert [line.precisions for line in both.lines] == [("float32",), ("bfloat16-scoring", "float32")]
    assert "| bfloat16-scoring, float32 |" in outcome_markdown(both)
    assert "seeds of both are counted" in outcome_markdown(both)
    assert [line.precisions for line in found(er).lines] == [("float32",), ()]
    assert "precision" not in outcome_markdown(found(er)).lower()


def test_a_number_that_some_runs_lack_is_told() -> None:
    gen = entry("table5", "GEN", "MNIST Split")
    target = Target("t", "t", (gen,), 3, ("generator-loss",))
    made = [made_result(gen.spec(seed), **{"generator-loss": value}) for seed, value in enumerate((1.0, None, 3.0))]
    (line,) = outcome(target, Results(made)).lines
    assert line.undefined == 1
    assert "| 2, 1 undefined |" in outcome_markdown(outcome(target, Results(made)))


def test_results_of_earlier_versions_do_not_count_as_stale_once_their_seeds_are_run_again() -> None:
    target = Target("t", "t", (SPEC_ER,), 2, ("accuracy",))
    old = [made_result(dataclasses.replace(SPEC_ER.spec(seed), method_version=0)) for seed in range(2)]
    new = [made_result(SPEC_ER.spec(seed)) for seed in range(2)]
    assert [line.stale for line in outcome(target, Results([*old, *new])).lines] == [0]
    assert [line.stale for line in outcome(target, Results([*old, new[1]])).lines] == [1]


def test_an_undefined_metric_is_no_number_and_one_that_does_not_apply_is_no_line() -> None:
    iid = entry("table1", "iid online", "MNIST Split")
    results = Results([made_result(iid.spec(seed), forgetting=None) for seed in range(2)])
    (accuracy,) = outcome(Target("t", "t", (iid,), 3), results).lines
    assert accuracy.metric == "accuracy"
    bare = dataclasses.replace(iid, cells={})
    _, forgetting = outcome(Target("t", "t", (bare,), 3), results).lines
    assert forgetting.ours is None
    assert forgetting.judgement == "no number"


def test_csv_and_markdown_say_the_same() -> None:
    found = outcome(TARGETS["table1"], Results(table1_results()))
    table = list(csv.DictReader(io.StringIO(outcome_csv(found))))
    assert len(table) == len(found.lines)
    (er,) = [row for row in table if (row["row"], row["column"], row["metric"]) == ("ER", "MNIST Split", "accuracy")]
    assert float(er["mean"]) == pytest.approx(0.815)
    assert (er["n"], er["published_value"], er["published_se"], er["verdict"]) == (
        "4",
        "0.821",
        "0.0075",
        "inconclusive",
    )
    assert (float(er["difference"]), float(er["reference"])) == (pytest.approx(-0.006), pytest.approx(0.826))
    assert er["seeds_needed"] == str(lines_verdict(found).seeds_needed)
    text = outcome_markdown(found)
    assert (
        "| ER | MNIST Split | accuracy | 81.5 ± 2.1 | 81.5 | 4 of 20 | 82.1 ± 1.5 | 82.6 ± 1.2 (n = 20) "
        f"| inconclusive (about {lines_verdict(found).seeds_needed} seeds) | 10.0 "
        "| `rehearse reproduce table1 --only er` |"
    ) in text
    assert "| GEM | Permuted MNIST | accuracy | – | – | 0 | 78.8 ± 0.4 | – | not run | – |" in text
    assert "repaired to run on torch 2.13" in text  # where the reference's number is from
    assert "| ER-MIR − ER | MNIST Split | accuracy | +8.0 ± 2.5 | 3 | settled |" in text


def test_units_and_legend_are_those_of_the_metrics() -> None:
    losses = TARGETS["table5"]
    results = Results(made_result(e.spec(s), **{"generator-loss": 100.0 + s}) for e in losses.entries for s in (0, 1))
    found = outcome(losses, results)
    differences = outcome_differences_table(found)
    assert differences is not None
    told = f"{outcome_table(found).title} {outcome_table(found).caption} {differences.title} {outcome_markdown(found)}"
    assert told.count("in nats") == 4
    assert not any(word in told for word in ("in %", "in points", "forgetting"))
    usual = outcome(TARGETS["table1"], Results(table1_results()))
    told = f"{outcome_table(usual).title} {outcome_table(usual).caption} {outcome_markdown(usual)}"
    assert told.count("in %") == 2
    assert "same seeds, in points:" in told
    assert "forgetting: best minus final accuracy" in told
    assert units(("accuracy", "generator-loss")) == "accuracy in %, all else in nats"


def test_the_page_counts_verdicts_and_cpu_hours() -> None:
    found = [outcome(TARGETS[name], Results(table1_results())) for name in ("table1", "figure4")]
    page = reproduction_page(found, {"figure4": "figures/figure4.svg"})
    words = [line.judgement for line in found[0].lines]
    counts = [words.count(word) for word in ("agrees", "differs", "inconclusive", "not run")]
    assert sum(counts) == 28
    assert counts[2] >= 2
    assert f"| [table1](#table1) | {found[0].target.title} | {' | '.join(map(str, counts))} |" in page
    assert f"| **all tables** |  | {' | '.join(map(str, counts))} |" in page
    assert "No published numbers; 2 of 5 cells run. | – | – | – | – |" not in page  # those two are of Split MNIST
    assert "No published numbers; 0 of 5 cells run. | – | – | – | – |" in page
    assert page.index("[figure4](#figure4)") < page.index("## table1")
    first = outcome_markdown(found[0]).split("\n\n")[1]
    told = ("agrees", "differs", "inconclusive", "not run")
    assert (
        first == f"**Of 28 published numbers: {', '.join(map(' '.join, zip(told, map(str, counts), strict=True)))}.**"
    )
    assert "## table1" in page
    assert "(figures/figure4.svg)" in page


def test_what_several_tables_show_is_counted_once_on_the_page() -> None:
    results = [result | {"cost": result["cost"] | {"cpu_seconds": 3600.0}} for result in table1_results()]
    alone, twice = (
        reproduction_page([outcome(TARGETS[name], Results(results)) for name in names], {})
        for names in (("table1",), ("table1", "table1"))
    )
    assert f"took {len(results)}.0 CPU hours" in alone
    assert f"took {len(results)}.0 CPU hours" in twice
    total = re.compile(r"\| \*\*all tables\*\* .*")
    assert total.findall(alone) == total.findall(twice)
    assert len(total.findall(alone)) == 1


def test_a_number_in_three_columns_of_a_table_counts_once() -> None:
    """iid online needs no memory: Table 2 prints one number under each M."""
    spec = entry("table2", "iid online", "M=20").spec
    found = outcome(TARGETS["table2"], Results([made_result(spec(seed), 0.608) for seed in range(3)]))
    assert sum(line.judgement == "agrees" for line in found.lines) == 3
    assert counted(found) == "Of 28 published numbers: agrees 1, differs 0, inconclusive 0, not run 27."


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.9, 0.9], "differs (+7.9)"),
        ([0.9, 0.9, 0.9], "differs (+7.9 ± 1.6)"),
        ([0.821], "inconclusive (one run)"),
        ([0.821, 0.821], "agrees"),
        ([0.80, 0.84], "inconclusive (about 20 seeds)"),
    ],
)
def test_a_verdict_in_words(values: list[float], said: str) -> None:
    made = [made_result(SPEC_ER.spec(seed), value) for seed, value in enumerate(values)]
    (line, *_) = outcome(Target("t", "t", (SPEC_ER,), 1), Results(made)).lines
    assert judgement(line) == said


def test_a_published_interval_that_is_too_wide_is_named() -> None:
    one = entry("table2", "ER", "M=100")
    made = [made_result(one.spec(seed), forgetting=value) for seed, value in enumerate((0.24, 0.23, 0.22))]
    _, line = outcome(Target("t", "t", (one,), 1), Results(made)).lines
    assert judgement(line) == "inconclusive (the published ± alone is too wide)"


def test_stale_seeds_are_those_that_are_asked_for() -> None:
    old = [dataclasses.replace(SPEC_ER.spec(seed), method_version=0) for seed in range(9)]
    found = Results([made_result(spec) for spec in old])
    (line, *_) = [line for line in outcome(TARGETS["table1"], found, 2).lines if line.entry == SPEC_ER]
    assert (line.judgement, line.stale) == ("stale", 2)


def test_results_of_methods_and_streams_that_are_gone_cost_nothing() -> None:
    gone = [dataclasses.replace(SPEC_ER.spec(0), **{name: "gone"}) for name in ("method", "stream")]
    costs = Costs([made_result(spec) for spec in gone])
    assert not costs.estimate(SPEC_ER.spec(0)).measured


def test_costs_are_those_of_the_same_setting_then_of_the_like_then_a_guess() -> None:
    costs = Costs(table1_results())
    same = costs.estimate(SPEC_ER.spec(17))
    assert (same.cpu_seconds, same.measured) == (10.0, True)
    twice = dataclasses.replace(SPEC_ER.spec(0), updates=2)
    assert costs.estimate(twice).cpu_seconds == pytest.approx(20.0)
    assert not costs.estimate(twice).measured
    larger = dataclasses.replace(SPEC_ER.spec(0), budget=50)  # 60 rows forth and back instead of 20
    assert costs.estimate(larger).cpu_seconds == pytest.approx(30.0)
    passing = dataclasses.replace(SPEC_ER.spec(0), candidates=60)  # 60 rows forth beside 20 forth and back
    assert costs.estimate(passing).cpu_seconds == pytest.approx(20.0)
    cifar = entry("table2", "ER-MIR", "M=100").spec()
    assert 300 < costs.estimate(cifar).cpu_seconds < 3000  # the published program needs about 1,550
    assert rows(cifar) == 5 * 9750
    offline = entry("table1", "iid offline", "MNIST Split").spec()
    assert work(offline) == 5 * 5000


def test_a_page_is_filled_between_its_marks_and_nowhere_else() -> None:
    found = outcome(TARGETS["table1"], Results(table1_results()))
    page = "before\n<!-- generated: table1 -->\nold\n<!-- end -->\nafter\n<!-- generated: table2 -->\n<!-- end -->\n"
    text = filled(page, [found])
    assert text.startswith("before\n<!-- generated: table1 -->\nOf 28 published numbers: agrees 1, differs 0, ")
    assert text.endswith("\n<!-- end -->\nafter\n<!-- generated: table2 -->\n<!-- end -->\n")
    assert "| ER | MNIST Split | accuracy | 81.5 ± 2.1 | 81.5 | 4 of 20 | 82.1 ± 1.5 | 82.6 ± 1.2 (n = 20) |" in text
    assert "old" not in text
    assert filled(text, [found]) == text


def test_real_images_at_test_time_are_read_from_the_runs_of_ae() -> None:
    """Figure 6: what is asked plays no part in training, so "- test AE" is no run of its own."""
    plain, asked = entry("figure6", "AE-Random", "1,000 codes"), entry("figure6", "- test AE", "1,000 codes")
    assert plain.spec() == asked.spec()
    assert asked.alone().options["autoencode_test"] is False
    assert asked.alone() == resolve("ae", "split-cifar10", named_specs()["ae-without-test"], {"capacity": 1000})
    told = made_result(plain.spec(0), 0.3) | {"treatments": {"real-test": {"metrics": {"accuracy": 0.2}}}}
    found = outcome(TARGETS["figure6"], Results([told]))
    runs = {row: found.runs[row, "1,000 codes"] for row in ("AE-Random", "- test AE")}
    assert {row: one[0]["metrics"]["accuracy"] for row, one in runs.items()} == {"AE-Random": 0.3, "- test AE": 0.2}


def in_precision(entry: Entry, precision: str, accuracy: float, **other: Any) -> dict[str, Any]:
    return made_result(dataclasses.replace(entry.spec(0), precision=precision, **other), accuracy)


@pytest.mark.parametrize(
    ("shared", "elsewhere"), [("bfloat16", {}), ("float32", {"row"}), ("float32", {"row", "version"})]
)
def test_a_difference_is_of_one_precision_where_both_have_one(shared: str, elsewhere: set[str]) -> None:
    """Whatever precision other cells of the target have, and whatever earlier versions there are."""
    target = TARGETS["figure5"]
    random, mir = (next(one for one in target.entries if one.row == row) for row in ("AE-Random", "AE-MIR"))
    other = "float32" if shared == "bfloat16" else "bfloat16"
    results = [
        in_precision(random, shared, 0.3),
        in_precision(mir, shared, 0.31),
        in_precision(random, other, 0.4),
    ]
    version = {"method_version": 0} if "version" in elsewhere else {}
    far = [one for one in target.entries if one.column == "10,000 codes"] if "row" in elsewhere else []
    results += [in_precision(one, other, 0.5, **version) for one in far]
    found = outcome(target, Results(results))
    near = [
        one for one in found.differences if (one.metric, one.later, one.column) == ("accuracy", mir.row, mir.column)
    ]
    assert [difference.ours.mean for difference in near] == [pytest.approx(0.01)]


def test_what_was_trained_in_bfloat16_says_so_and_how_to_make_it() -> None:
    target = TARGETS["figure5"]
    text = outcome_markdown(outcome(target, Results([in_precision(target.entries[0], "bfloat16", 0.3)])))
    assert "| bfloat16 |" in text
    assert "--only ae --precision bfloat16`" in text


def test_settings_that_differ_are_named_with_their_rows() -> None:
    er, mir, dark = (resolve(method, "split-mnist", {"seed": 3}) for method in ("er", "er-mir", "der"))
    assert settings_that_differ({"ER": er, "ER-MIR": mir}) == ""  # candidates and criterion belong to one of them
    faster = dataclasses.replace(mir, lr=0.1, updates=2)
    assert settings_that_differ({"ER": er, "ER-MIR": mir, "fast": faster, "der": dark}) == (
        "Settings that differ: lr 0.05, but 0.1 (fast, der); updates 1, but 2 (fast)."
    )


def test_a_table_shows_the_settings_in_which_its_rows_differ_and_the_criterion() -> None:
    page = outcome_markdown(outcome(TARGETS["methods"], Results([])))
    assert "\n\nSettings that differ: lr 0.1, but 0.2 (gem), 0.01 (agem); budget 10, but 256 (agem)." in page
    assert 'Retrieval: `MostInterfered(criterion="mi2")` in er-mir, er-mir-head, er-ace-mir, der-mir' in page
    assert "Settings that differ" not in outcome_markdown(outcome(TARGETS["learning-rate"], Results([])))
    assert '`MostInterfered(criterion="mi1")` in ER-MIR' in outcome_markdown(outcome(TARGETS["table2"], Results([])))
