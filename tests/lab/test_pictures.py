"""Pictures of a run: drawn at the end of each task, without moving a number; through the engine to the page."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys

import pytest
from made_results import made_result
from typer.testing import CliRunner

from rehearse.errors import MissingExtra
from rehearse.lab.campaign.store import Store
from rehearse.lab.cli.app import app
from rehearse.lab.experiment import Settings, execute, with_precision
from rehearse.lab.methods import resolve
from rehearse.lab.paper.target import Target
from rehearse.lab.paper.targets import TARGETS
from rehearse.lab.report.images import GAP, SCALE
from rehearse.lab.report.pictures import check_pictures, draw_task
from rehearse.lab.streams.datasets.mnist import REMOTES

Image = pytest.importorskip("PIL.Image")
pytest.importorskip("jinja2")


@pytest.mark.parametrize(
    ("method", "names"),
    [
        ("er-mir", [f"task-0{task}-replayed" for task in (2, 3, 4, 5)]),
        (
            "gen-mir",
            sorted(
                [f"task-0{task}-imagined" for task in (1, 2, 3, 4, 5)]
                + [f"task-0{task}-retrieved" for task in (1, 2, 3, 4, 5)]
                + [f"task-0{task}-reconstructed" for task in (1, 2, 3, 4, 5)]
            ),
        ),
        (
            "ae",
            sorted(
                [f"task-0{task}-reconstructed" for task in (1, 2, 3, 4, 5)]
                + [f"task-0{task}-replayed" for task in (2, 3, 4, 5)]
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


def small(name: str) -> Target:
    """A figure of the paper on few of the embedded digits."""
    figure = TARGETS[name]
    settings = {"samples_per_task": 20, "updates": 1}
    entries = [dataclasses.replace(entry, stream="split-mnist-5k", settings=settings) for entry in figure.entries]
    return dataclasses.replace(figure, entries=tuple(entries))


def rows_of(path) -> int:
    with Image.open(path) as picture:
        return (picture.height // SCALE - GAP) // (28 + GAP)


def test_figures_2_and_3_take_one_run_of_each_method_and_their_numbers_count(tmp_path, monkeypatch):
    figures = [small("figure2"), small("figure3")]
    monkeypatch.setattr("rehearse.lab.cli.reproduce.find_targets", lambda names: figures)
    done = CliRunner().invoke(app, ["reproduce", "figure2", "figure3", "--out", str(tmp_path), "--jobs", "1"])
    assert done.exit_code == 0, done.output
    tables = tmp_path / "tables"
    rows = {path.stem: rows_of(path) for path in tables.glob("*.png")}
    assert rows == {"figure2": 3, "figure3a": 2, "figure3b": 5}  # as in the paper: 3a of GEN, the others of GEN-MIR
    assert all(f"{name} is drawn in {tables / name}.png" in done.output.replace("\n", "") for name in rows)
    keys = {with_precision(spec).key for spec in figures[1].specs()}
    assert {path.stem for path in tmp_path.glob("*.json")} == keys
    assert not any((tmp_path / key).exists() for key in keys)  # no second run
    written = tmp_path / "page.md"
    shutil.copytree(tables, tmp_path / "figures")
    words = ["reproduce", "figure3", "--from-results", str(tmp_path), "--write", str(written)]
    assert CliRunner().invoke(app, words).output.startswith("figure2, figure3 on ")
    assert all(f"(figures/{name}.png)\n\n" in written.read_text("utf-8") for name in rows)


def test_results_alone_hold_no_pictures_and_that_is_said(tmp_path):
    spec = TARGETS["figure4"].specs(1)[0]
    Store(tmp_path).put(spec, made_result(spec))
    words = ["reproduce", "figure2", "figure4", "--from-results", str(tmp_path), "--write", str(tmp_path / "page.md")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert done.output.count("is a picture of a run") == 1
    assert "`rehearse reproduce figure2`" in done.output


def test_a_run_for_a_picture_that_fails_is_not_tried_twice(tmp_path):
    (tmp_path / "mnist").mkdir()
    for remote in REMOTES:
        (tmp_path / "mnist" / remote.name).write_bytes(b"damaged")
    words = ["reproduce", "figure2", "--out", str(tmp_path / "out"), "--jobs", "1", "--data-dir", str(tmp_path)]
    nowhere = {name: value for name, value in os.environ.items() if name != "REHEARSE_DATA"}
    nowhere["XDG_CACHE_HOME"] = str(tmp_path)  # nor there are the digits, wherever else they are on this machine
    command = [sys.executable, "-m", "rehearse", *words]
    done = subprocess.run(command, env=nowhere, capture_output=True, text=True, timeout=300)
    assert done.returncode == 1
    said = " ".join((done.stdout + done.stderr).split())
    assert said.count("gen-mir on split-mnist, seed 0: failed") == 1
    assert "is no complete gzip file" in said


def test_the_command_line_draws_and_the_page_shows(tmp_path):
    words = ["run", "er", "--seeds", "1", "--samples-per-task", "20", "--out", str(tmp_path), "--jobs", "1"]
    done = CliRunner().invoke(app, [*words, "--images"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["report", str(tmp_path), "-o", str(tmp_path / "report.html")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "report.html").read_text("utf-8")
    assert re.findall(r'<img src="data:image/png;base64,[^"]+" alt="(task-0\d-replayed), er"', text) == [
        f"task-0{task}-replayed" for task in (2, 3, 4, 5)
    ]


def test_without_the_extra_nothing_is_run(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"rehearse-torch\[lab\]"):
        check_pictures()
