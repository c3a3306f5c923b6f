"""The page as it is made: which runs, in which sections, with which numbers; nothing of it needs a browser."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from page_results import PNG, matrix_of, put, some_runs
from typer.testing import CliRunner

from rehearse import metrics
from rehearse.errors import DataError, InvalidInput
from rehearse.lab.cli.app import app
from rehearse.lab.methods import resolve
from rehearse.lab.report import charts, page
from rehearse.lab.report.compare import own_cost
from rehearse.lab.report.rerun import rerun_command
from rehearse.lab.report.runs import find_run, find_runs
from rehearse.lab.report.sections import sections
from rehearse.lab.spec import Spec, named_specs
from rehearse.lab.statistics import summary

pytest.importorskip("jinja2")


@pytest.fixture
def runs(tmp_path):
    some_runs(tmp_path / "runs")
    return find_runs([], tmp_path / "runs")


class Elements(HTMLParser):
    """Every start tag with its attributes, and the text outside of style and script."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self._inside = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag in ("style", "script"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data):
        if not self._inside:
            self.text += data


# ------------------------------------------------------------------------------------------------- which runs


def test_runs_are_named_by_file_key_directory_and_folder(tmp_path):
    out = tmp_path / "runs"
    first = put(out, Spec(method="er", stream="split-mnist-5k", capacity=50), matrix_of(0.7, 0.1, 0))
    second = put(out / "demo", Spec(method="er", stream="split-mnist-5k", capacity=60), matrix_of(0.7, 0.1, 0))
    (out / first.stem).mkdir()
    (out / first.stem / "spec.json").write_text("{}")
    keys = [first.stem]
    assert [run.spec.key for run in find_runs([str(first)], out)] == keys
    assert [run.spec.key for run in find_runs([first.stem[:8]], out)] == keys
    assert [run.spec.key for run in find_runs([str(out / first.stem)], out)] == keys
    assert [run.spec.key for run in find_runs([str(first), first.stem, str(first)], out)] == keys
    assert {run.spec.key for run in find_runs([], out)} == {first.stem, second.stem}


def test_what_is_not_there_or_not_plain_is_refused_in_words(tmp_path, runs):
    with pytest.raises(InvalidInput, match="there is no run 'ffff'"):
        find_run("ffff", tmp_path)
    with pytest.raises(InvalidInput, match="give more digits"):
        find_run("", tmp_path / "runs")
    with pytest.raises(InvalidInput, match="there is no result"):
        find_runs([], tmp_path / "nothing")


@pytest.mark.parametrize(
    "change",
    [
        {"matrices": {"test": [[0.5, 0.5]]}},
        {"matrices": {"test": [["<b>"]]}},
        {"matrices": {}},
        {"metrics": {"accuracy": "much"}},
        {"metrics": {"accuracy": 7.0}},
        {"cost": {"seconds": None}},
    ],
)
def test_a_result_whose_numbers_are_none_is_refused(tmp_path, change):
    path = put(tmp_path, Spec(method="er", stream="s"), matrix_of(0.7, 0.1, 0))
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match="is no result of a run"):
        find_runs([str(path)], tmp_path)


def test_a_crowded_section_begins_with_the_methods_and_keeps_its_variants_aside(tmp_path):
    usual = [resolve(name, "split-mnist", {"memory": 20}) for name in ("er", "er-mir", "gen")]
    variants = [resolve("er", "split-mnist", {"memory": 20, "lr": 0.1 * n}) for n in range(1, 7)]
    for spec in (*usual, *variants):
        put(tmp_path, spec, matrix_of(0.7, 0.1, 0))
    (section,) = sections(find_runs([], tmp_path))
    assert len(section.rows) == 9
    assert {row.spec.key for row in section.rows if row.label in section.aside} == {spec.key for spec in variants}
    text = page.render(find_runs([], tmp_path))
    assert text.count('class="legend"') == 1  # for all charts of the section
    assert text.count(" data-aside ") == 6
    assert "6 variants" in text
    (tmp_path / f"{variants[0].key}.json").unlink()
    (section,) = sections(find_runs([], tmp_path))
    assert not section.aside  # as many rows as colours: nothing is left out


def test_of_two_places_that_hold_a_run_the_one_with_pictures_counts(tmp_path):
    spec = Spec(method="er", stream="s")
    put(tmp_path / "runs", spec, matrix_of(0.7, 0.1, 0))
    drawn = put(tmp_path / "runs" / "pictures", spec, matrix_of(0.7, 0.1, 0))
    (drawn.with_suffix("") / "images").mkdir(parents=True)
    (found,) = find_runs([], tmp_path / "runs")
    assert found.folder == drawn.with_suffix("")


def test_a_damaged_file_is_told_where_a_directory_was_named_and_refused_where_it_was(tmp_path):
    good = put(tmp_path, Spec(method="er", stream="s"), matrix_of(0.7, 0.1, 0))
    bad = tmp_path / f"{7:016x}.json"
    bad.write_text("{")
    told = []
    assert [run.spec.key for run in find_runs([], tmp_path, told.append)] == [good.stem]
    assert str(bad) in str(told[0])
    with pytest.raises(DataError):
        find_runs([str(bad)], tmp_path, told.append)


# --------------------------------------------------------------------------------------------------- sections


def test_streams_and_memories_have_sections_and_what_needs_no_memory_is_in_each(tmp_path):
    for capacity in (100, 50):
        put(tmp_path, Spec(method="er", stream="split-mnist-5k", capacity=capacity), matrix_of(0.7, 0.1, 0))
    put(tmp_path, Spec(method="finetune", stream="split-mnist-5k"), matrix_of(0.7, 0.1, 0))
    put(tmp_path, Spec(method="finetune", stream="permuted-mnist"), matrix_of(0.7, 0.1, 0))
    made = sections(find_runs([], tmp_path))
    assert [(part.problem["stream"], part.capacity, [row.label for row in part.rows]) for part in made] == [
        ("permuted-mnist", None, ["finetune"]),
        ("split-mnist-5k", 50, ["finetune", "er"]),
        ("split-mnist-5k", 100, ["finetune", "er"]),
    ]
    assert len({row.style for part in made for row in part.rows if row.label == "finetune"}) == 1
    elements = Elements(page.render(find_runs([], tmp_path)))
    shown = [attributes["id"] for _, attributes in elements.tags if attributes.get("id", "").startswith("run-")]
    assert len(shown) == len(set(shown)) == 4


def test_rows_of_one_method_are_told_apart_by_what_differs(tmp_path):
    for seed in range(2):
        for lr in (0.05, 0.1):
            put(tmp_path, Spec(method="er", stream="s", seed=seed, lr=lr, options={"a": lr}), matrix_of(0.7, 0.1, 0))
    (section,) = sections(find_runs([], tmp_path))
    assert [row.label for row in section.rows] == ["er (lr 0.05, a 0.05)", "er (lr 0.1, a 0.1)"]
    assert [[run.spec.seed for run in row.runs] for row in section.rows] == [[0, 1], [0, 1]]


def test_two_precisions_share_a_row_unless_a_seed_was_run_at_both(tmp_path):
    spec = Spec(method="er", stream="s", precision="float32")
    put(tmp_path, spec, matrix_of(0.7, 0.1, 0))
    put(tmp_path, Spec(method="er", stream="s", seed=1, precision="bfloat16"), matrix_of(0.7, 0.1, 0))
    (section,) = sections(find_runs([], tmp_path))
    assert [len(row.runs) for row in section.rows] == [2]
    put(tmp_path, Spec(method="er", stream="s", precision="bfloat16"), matrix_of(0.7, 0.1, 0))
    (section,) = sections(find_runs([], tmp_path))
    assert sorted((row.label, len(row.runs)) for row in section.rows) == [
        ("er (precision bfloat16)", 2),
        ("er (precision float32)", 1),
    ]


def test_a_run_under_two_names_counts_once(tmp_path):
    for precision in ("float32", "bfloat16-scoring"):  # plain replay scores nothing: the same run
        put(tmp_path, Spec(method="er", stream="s", precision=precision), matrix_of(0.7, 0.1, 0))
    (section,) = sections(find_runs([], tmp_path))
    assert [len(row.runs) for row in section.rows] == [1]


def test_trials_of_a_search_are_not_compared(tmp_path):
    put(tmp_path, Spec(method="er", stream="s"), matrix_of(0.7, 0.1, 0))
    put(tmp_path / "tune", Spec(method="er", stream="s", lr=0.3), matrix_of(0.7, 0.1, 0))
    assert [run.spec.lr for run in find_runs([], tmp_path)] == [0.05]
    assert [run.spec.lr for run in find_runs([str(tmp_path / "tune")], tmp_path)] == [0.3]


def test_evaluating_other_treatments_is_no_cost_of_the_method():
    cost = {"seconds": 12.0, "cpu_seconds": 10.0, "treatments_cpu_seconds": 4.0, "steps": 3}
    assert own_cost(cost) == cost | {"cpu_seconds": 6.0}  # the clock's seconds hold whatever else the machine did


def test_a_row_of_two_precisions_is_called_mixed(tmp_path):
    for lr in (0.05, 0.1):
        for seed, precision in enumerate(("float32", "bfloat16")):
            spec = Spec(method="er", stream="s", seed=seed, lr=lr, precision=precision if lr == 0.1 else "float32")
            put(tmp_path, spec, matrix_of(0.7, 0.1, 0))
    (section,) = sections(find_runs([], tmp_path))
    assert {row.label for row in section.rows} == {"er (lr 0.05, precision float32)", "er (lr 0.1, precision mixed)"}


def test_a_row_has_the_name_of_its_spec_and_no_more_than_three_settings(tmp_path):
    for name in ("gen-mir-stale", "gen-mir-ranking"):
        values = named_specs()[name]
        put(tmp_path, resolve(values["method"], values["stream"], values), matrix_of(0.7, 0.1, 0))
    for seed, options in enumerate(({"depth": 3, "hidden": 7, "latent": 5, "dropout": 0.1}, {})):
        put(tmp_path, resolve("gen", "split-mnist", {"options": options, "seed": seed}), matrix_of(0.7, 0.1, 0))
    (section,) = sections(find_runs([], tmp_path))
    labels = [row.label for row in section.rows]
    assert {"gen-mir-stale", "gen-mir-ranking"} < set(labels)
    assert all(label.count(",") <= 3 for label in labels)
    assert any(label.endswith(", …)") for label in labels)


def test_rows_are_told_apart_by_colour_and_mark(tmp_path):
    for number in range(20):
        put(tmp_path, Spec(method="er", stream="s", lr=0.01 * (number + 1)), matrix_of(0.7, 0.1, 0))
    elements = Elements(page.render(find_runs([], tmp_path))).tags
    series = [attributes for name, attributes in elements if attributes.get("class", "").startswith("series s")]
    marks = [attributes["d"] for name, attributes in elements if attributes.get("class") == "shape"]
    looks = {(one["data-series"], one["class"]) for one in series}
    assert len(looks) == 20
    assert len({look for _, look in looks}) == 8  # colours
    keys = marks[:20]  # those of the comparison table come first
    assert len({(i % 8, mark) for i, mark in enumerate(keys)}) == 20


def test_results_of_an_earlier_version_are_shown_as_stale(tmp_path):
    put(tmp_path, Spec(method="er", stream="split-mnist-5k", method_version=99), matrix_of(0.7, 0.1, 0))
    assert "stale" in Elements(page.render(find_runs([], tmp_path))).text


# ----------------------------------------------------------------------------------------------------- charts


def test_the_charts_hold_the_metrics_of_the_matrices(runs):
    (section,) = sections(runs)
    row = section.rows[1]
    expected = np.mean([metrics.accuracy_seen(matrix) for matrix in row.matrices], axis=0)
    seen = charts.seen_chart(section.rows).series[1]
    assert [mark.value for mark in seen.marks] == pytest.approx(100 * expected, abs=1e-3)
    drops = [[max(m[task:, task]) - m[-1, task] for task in range(3)] for m in row.matrices]
    forgetting = charts.forgetting_chart(section.rows).series[1]
    assert [mark.value for mark in forgetting.marks] == pytest.approx(100 * np.mean(drops, axis=0), abs=1e-3)
    assert np.mean(drops) == pytest.approx(np.mean([metrics.forgetting(m) for m in row.matrices]))
    cost = charts.cost_chart(section.rows, "cpu_seconds", "", "", "s")
    assert [series.marks[0].value for series in cost.series] == pytest.approx(
        [100 * np.mean([metrics.average_accuracy(m) for m in each.matrices]) for each in section.rows], abs=1e-3
    )
    heat = charts.heat_map(row)
    known = {(cell.row, cell.column): cell.share for cell in heat.cells if cell.share is not None}
    wanted = {place: row.matrices[:, *place].mean() for place in np.ndindex(4, 4) if place[1] <= place[0]}
    assert known == pytest.approx(wanted, abs=1e-4)


def test_a_task_not_seen_yet_is_an_empty_cell_though_runs_were_asked_about_it(tmp_path):
    for seed, ahead in ((0, 0.4), (1, None)):
        matrix = matrix_of(0.8, 0.1, seed)
        matrix[0][3] = ahead
        put(tmp_path, Spec(method="er", stream="s", seed=seed), matrix)
    ((row,),) = (section.rows for section in sections(find_runs([], tmp_path)))
    shares = {(cell.row, cell.column): cell.share for cell in charts.heat_map(row).cells}
    assert (shares[0, 3], shares[0, 2]) == (None, None)
    assert shares[3, 0] is not None


def test_marks_and_intervals_stand_where_their_axis_says(runs):
    (section,) = sections(runs)
    chart = charts.seen_chart(section.rows)
    numbers = summary(metrics.accuracy_seen(matrix)[2] for matrix in section.rows[0].matrices)
    mark = chart.series[0].marks[2]
    assert (mark.low, mark.y, mark.high) == tuple(
        chart.y.at(v) for v in (numbers.interval[0], numbers.mean, numbers.interval[1])
    )
    assert mark.low > mark.y > mark.high  # downwards on the paper
    assert chart.series[0].band.count(",") == 2 * len(chart.series[0].marks)


def test_a_method_measured_only_at_the_end_is_a_line_of_reference_without_forgetting(tmp_path):
    matrix = [[None] * 4] * 3 + [[0.9, 0.8, 0.7, 0.6]]
    put(tmp_path, Spec(method="iid-online", stream="s"), matrix)
    put(tmp_path, Spec(method="finetune", stream="s"), matrix_of(0.3, 0.2, 0))
    (section,) = sections(find_runs([], tmp_path))
    iid = next(series for series in charts.seen_chart(section.rows).series if series.label == "iid-online")
    assert iid.reference
    assert [mark.value for mark in iid.marks] == [75.0]
    assert [series.label for series in charts.forgetting_chart(section.rows).series] == ["finetune"]
    assert [row[0] for row in charts.forgetting_chart(section.rows).table] == pytest.approx([20, 13.3333, 6.6667])
    assert charts.seen_chart(section.rows).table[0].count(None) == 1
    page.render(find_runs([], tmp_path))


def test_a_single_task_and_a_single_run_make_a_page(tmp_path):
    put(tmp_path, Spec(method="er", stream="s"), [[0.5]])
    text = Elements(page.render(find_runs([], tmp_path))).text
    assert "50.0" in text
    assert "Forgetting, task by task" not in text


def test_readings_follow_the_interval():
    difference = {"method": "b", "minus": "a"}
    for values, said in [
        ([0.1, 0.11, 0.12], "b is more accurate"),
        ([-0.1, -0.11, -0.12], "a is more accurate"),
        ([-0.1, 0.1, 0.0], "no significant difference (95 %)"),
        ([0.1, 0.1], "2 seeds in common: no interval below 3"),
        ([0.1], "1 seed in common: no interval below 3"),
    ]:
        assert page.reading(difference | {"accuracy": {"values": values}}) == said
    assert page.reading(difference | {"accuracy": None}) == "no seed in common"


# ------------------------------------------------------------------------------------------------- safe to open

HOSTILE = [
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    '"><img src=x onerror=alert(3)>',
    "' onmouseover='alert(4)",
    "</style><script>alert(5)</script>",
    "{{ 7 * 7 }}{% raw %}",
    "<!-- ]]> &lt;b&gt;",
]


def hostile_runs(folder: Path) -> None:
    for number, text in enumerate(HOSTILE):
        spec = Spec(method=text, stream=HOSTILE[-1 - number], network=text, options={text: text}, seed=number)
        put(folder, spec, matrix_of(0.6, 0.2, 0))
        images = folder / spec.key / "images"
        images.mkdir(parents=True)
        (images / (text.replace("/", "∕") + ".png")).write_bytes(PNG)


def test_nothing_of_a_run_becomes_markup(tmp_path, runs):
    hostile_runs(tmp_path / "hostile")
    hostile, usual = (page.render(which, HOSTILE[0]) for which in (find_runs([], tmp_path / "hostile"), runs))
    there, here = Elements(hostile), Elements(usual)
    kinds = {tag for tag, _ in there.tags}
    assert kinds - {"img", "figcaption", "nav", "a"} <= {tag for tag, _ in here.tags}
    assert sum(tag == "script" for tag, _ in there.tags) == 1
    names = {name for _, attributes in there.tags for name in attributes}
    assert not {name for name in names if name.startswith("on")}
    assert all(attributes["src"].startswith("data:image/png;base64,") for tag, attributes in there.tags if tag == "img")
    for text in HOSTILE:
        assert text in there.text


def test_nothing_is_loaded_from_anywhere(runs):
    text = page.render(runs)
    assert not re.findall(r"https?://", text)
    sources = [attributes.get("src") or attributes.get("href") for _, attributes in Elements(text).tags]
    assert all(source.startswith(("data:", "#")) for source in sources if source)
    assert "default-src 'none'" in text


def test_pictures_are_those_of_the_first_run_that_has_some(tmp_path):
    for seed in range(3):
        path = put(tmp_path, Spec(method="er", stream="s", seed=seed), matrix_of(0.7, 0.1, 0))
        if seed:
            (path.with_suffix("") / "images").mkdir(parents=True)
            (path.with_suffix("") / "images" / f"of seed {seed}.png").write_bytes(PNG)
            (path.with_suffix("") / "images" / "damaged.png").write_bytes(b"GIF89a")
    elements = Elements(page.render(find_runs([], tmp_path)))
    assert [attributes["alt"] for tag, attributes in elements.tags if tag == "img"] == ["of seed 1, er"]
    assert "damaged.png is no PNG picture, or too large" in elements.text


# ------------------------------------------------------------------------------------------------ command line


def test_the_command_writes_the_page_and_says_where(tmp_path):
    some_runs(tmp_path / "runs")
    target = tmp_path / "new" / "page.html"
    done = CliRunner().invoke(app, ["report", str(tmp_path / "runs"), "-o", str(target), "--title", "Nine runs"])
    assert done.exit_code == 0, done.output
    assert "9 runs are on" in done.output
    assert "<title>Nine runs</title>" in target.read_text("utf-8")
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]
    assert page.render(find_runs([], tmp_path / "runs"), "Nine runs") == target.read_text("utf-8")


@pytest.mark.parametrize("method", ["finetune", "er-mir"])
def test_the_command_of_a_run_makes_that_run(method, tmp_path):
    changes = {"seed": 7, "lr": 0.013, "batch_size": 5, "samples_per_task": 10, "precision": "float32"}
    changes |= {"task_free": True, "class_order": [3, 1, 0, 2, 9, 8, 7, 6, 5, 4]}
    if method != "finetune":
        changes |= {"capacity": 30, "exclude_current_task": False}
    spec = resolve(method, "split-mnist-5k", changes)
    program, *words = rerun_command({"spec": spec.to_dict(), "matrices": {"test": [[0.5, None], [0.5, 0.5]]}}).split()
    done = CliRunner().invoke(app, [*words, "--out", str(tmp_path), "--jobs", "1"])
    assert (program, done.exit_code) == ("rehearse", 0), done.output
    assert [run.spec for run in find_runs([], tmp_path)] == [spec]
