"""Pictures of a run: drawn at the end of each task, without moving a number; through the engine to the page."""

import re

import pytest
from typer.testing import CliRunner

from rehearse.cli import app
from rehearse.errors import MissingExtra
from rehearse.experiment import Settings, execute, with_precision
from rehearse.methods import resolve
from rehearse.paper.target import Entry, Target
from rehearse.report.pictures import check_pictures, draw_task

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("jinja2")


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("er-mir", [f"task-0{task}-recalled" for task in (2, 3, 4, 5)]),
        (
            "gen-mir",
            sorted(
                [f"task-0{task}-imagined" for task in (1, 2, 3, 4, 5)]
                + [f"task-0{task}-retrieved" for task in (2, 3, 4, 5)]
            ),
        ),
        (
            "ae",
            sorted(
                [f"task-0{task}-reconstructed" for task in (1, 2, 3, 4, 5)]
                + [f"task-0{task}-recalled" for task in (2, 3, 4, 5)]
            ),
        ),
        ("finetune", []),
    ],
)
def test_every_task_leaves_its_pictures_and_every_number_stays(method, names, tmp_path):
    spec = resolve(method, "split-mnist-5k", {"samples_per_task": 20})
    drawn = execute(spec, tmp_path / "with", Settings(on_task_end=draw_task))
    plain = execute(spec, tmp_path / "without")
    assert drawn["matrices"] == plain["matrices"]
    assert (tmp_path / "with" / "metrics.jsonl").read_bytes() == (tmp_path / "without" / "metrics.jsonl").read_bytes()
    assert sorted(path.stem for path in tmp_path.glob("with/images/*.png")) == names
    assert not (tmp_path / "without" / "images").exists()
    for path in tmp_path.glob("with/images/*.png"):
        with Image.open(path) as picture:
            low, high = picture.convert("L").getextrema()
        assert low < 60 < 200 < high  # ink and paper


def test_a_figure_of_pictures_takes_one_run_and_its_numbers_count(tmp_path, monkeypatch):
    spec = resolve("gen-mir", "split-mnist-5k", {"samples_per_task": 20, "seed": 0})
    entry = Entry("GEN-MIR", "digits", "gen-mir", "split-mnist-5k", {"samples_per_task": 20})
    figure = Target("figure3", "Pictures", (entry,), seeds=1, picture="retrieved")
    monkeypatch.setattr("rehearse.cli.reproduce.find_targets", lambda names: [figure])
    done = CliRunner().invoke(app, ["reproduce", "figure3", "--out", str(tmp_path), "--jobs", "1"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "tables" / "figure3.png").exists()
    assert [path.stem for path in tmp_path.glob("*.json")] == [with_precision(spec).key]
    assert not (tmp_path / with_precision(spec).key).exists()  # no second run


def test_the_command_line_draws_and_the_page_shows(tmp_path):
    words = ["run", "er", "--seeds", "1", "--samples-per-task", "20", "--out", str(tmp_path), "--jobs", "1"]
    done = CliRunner().invoke(app, [*words, "--images"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "report.html")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "report.html").read_text("utf-8")
    assert re.findall(r'<img src="data:image/png;base64,[^"]+" alt="(task-0\d-recalled), er"', text) == [
        f"task-0{task}-recalled" for task in (2, 3, 4, 5)
    ]


def test_without_the_extra_nothing_is_run(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"rehearse-torch\[images\]"):
        check_pictures()
