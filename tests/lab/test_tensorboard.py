"""TensorBoard: the events hold what metrics.jsonl holds, each line once, also after a resume."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rehearse.errors import MissingExtra
from rehearse.lab.campaign.events import Advanced, Finished, Started
from rehearse.lab.campaign.local import run_all
from rehearse.lab.campaign.store import Store
from rehearse.lab.experiment import Progress
from rehearse.lab.methods import resolve
from rehearse.lab.report.tensorboard import Follower, log_events, scalars
from rehearse.lab.spec import Spec

pytest.importorskip("tensorboard")


def read_back(folder: Path) -> list[tuple[int, str, float]]:
    """(step, tag, value) in the order of the file, by tensorboard's own reader."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    (path,) = (folder / "tensorboard").glob("*tfevents*")
    records = list(LegacyEventFileLoader(str(path)).Load())
    assert records[0].file_version == "brain.Event:2"
    return [(record.step, value.tag, value.simple_value) for record in records[1:] for value in record.summary.value]


def append(folder: Path, text: str) -> None:
    folder.mkdir(exist_ok=True)
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(text)


def test_the_events_hold_every_number_of_the_metrics_of_a_real_run(tmp_path):
    spec = resolve("er-mir", "split-mnist-5k", {"samples_per_task": 50, "seed": 3})
    store = Store(tmp_path)
    (*_, finished) = log_events(run_all([spec], store, jobs=1), store)
    assert isinstance(finished, Finished)
    folder = store.folder(finished.spec)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [(line["step"], line["incoming_loss"]) for line in lines if "incoming_loss" in line]
    events = read_back(folder)
    assert [step for step, tag, _ in events if tag == "incoming_loss"] == [step for step, _ in losses]
    assert [value for _, tag, value in events if tag == "incoming_loss"] == pytest.approx([v for _, v in losses])
    final = {tag: value for _, tag, value in events if tag.startswith("accuracy_test/")}
    assert final["accuracy_test/seen"] == pytest.approx(finished.result["metrics"]["accuracy"])
    assert final["accuracy_test/task_2"] == pytest.approx(finished.result["matrices"]["test"][-1][1])


def test_a_line_becomes_the_scalars_it_holds():
    assert scalars({"step": 1, "task": 0, "incoming_loss": 2.5, "replayed_loss": None, "replayed": [1]}) == {
        "incoming_loss": 2.5
    }
    line = {"step": 9, "evaluated_after_task": 1, "test": [0.5, 0.75, 0.1], "elbo": -3.0, "odd": None}
    assert scalars(line) == {
        "accuracy_test/seen": 0.625,
        "accuracy_test/task_1": 0.5,
        "accuracy_test/task_2": 0.75,
        "accuracy_test/task_3": 0.1,
        "after_task/elbo": -3.0,
    }
    assert "accuracy_test/seen" not in scalars({"step": 9, "evaluated_after_task": 1, "test": [None, 0.5]})


def test_lines_are_followed_as_they_come_and_only_when_whole(tmp_path):
    follower = Follower(tmp_path)
    follower.catch_up()
    append(tmp_path, '{"step": 1, "incoming_loss": 1.0}\n{"step": 2, "incom')
    follower.catch_up()
    assert read_back(tmp_path) == [(1, "incoming_loss", 1.0)]
    append(tmp_path, 'ing_loss": 2.0}\n')
    follower.catch_up()
    follower.catch_up()
    assert read_back(tmp_path) == [(1, "incoming_loss", 1.0), (2, "incoming_loss", 2.0)]


def test_metrics_that_were_cut_back_are_read_anew(tmp_path):
    follower = Follower(tmp_path)
    append(tmp_path, '{"step": 1, "incoming_loss": 1.0}\n{"step": 2, "incoming_loss": 2.0}\n')
    follower.catch_up()
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "incoming_loss": 1.0}\n')
    follower.catch_up()
    assert read_back(tmp_path) == [(1, "incoming_loss", 1.0)]


def test_a_run_that_is_started_again_leaves_no_line_twice(tmp_path):
    spec = Spec(method="er", stream="split-mnist-5k")
    store = Store(tmp_path)
    folder = store.folder(spec)
    append(folder, '{"step": 1, "incoming_loss": 1.0}\n')
    for _ in range(2):
        events = [Started(spec), Advanced(spec, Progress(spec.key, 1, 2, 0, 1.0)), Finished(spec, {})]
        assert list(log_events((event for event in events), store)) == events
    assert read_back(folder) == [(1, "incoming_loss", 1.0)]


def test_without_the_extra_nothing_is_run(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"rehearse-torch\[tensorboard\]"):
        log_events(iter(()), Store(tmp_path))


def test_tensorflow_is_never_imported(tmp_path):
    """Not even where it is installed: a module of that name in the path would be found out here."""
    (tmp_path / "tensorflow.py").write_text("raise SystemExit('tensorflow was imported')")
    code = (
        "from pathlib import Path; from rehearse.lab.report.tensorboard import write_scalars; "
        "write_scalars(Path('events'), [{'step': 1, 'incoming_loss': 1.0}])"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={"PYTHONPATH": str(tmp_path)})
    assert list((tmp_path / "events").iterdir())
