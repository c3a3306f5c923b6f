"""A monitor on the page: its curves, alarms and groups as it wrote them."""

import json

import pytest
import torch
from page_results import some_runs
from torch import nn
from typer.testing import CliRunner

from rehearse import Finetune, Monitor
from rehearse.errors import DataError
from rehearse.lab.cli.app import app
from rehearse.lab.report.monitored import JsonLines, read_monitored

pytest.importorskip("jinja2")


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory):
    """A monitor of a learner that forgets, with the file that it wrote."""
    path = tmp_path_factory.mktemp("monitored") / "shop.jsonl"
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4))
    learner = Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1))
    corners = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]])
    monitor = Monitor(learner, writer=JsonLines(path), every=100, share=0.3)
    for classes in ([0, 1], [2, 3]):
        for _ in range(80):
            y = torch.tensor(classes)[torch.randint(2, (10,))]
            monitor.observe(corners[y] + 0.3 * torch.randn(10, 2), y)
    monitor.look()
    return monitor, path


def test_numbers_are_read_as_the_monitor_reported_them(forgetful):
    monitor, path = forgetful
    found, report = read_monitored(path), monitor.report()
    curves = {series.label: [mark.value for mark in series.marks] for series in found.chart.series}
    assert curves["held out"][-1] == pytest.approx(100 * report["heldout_accuracy"], abs=1e-3)
    assert curves["forgetting"][-1] == pytest.approx(100 * report["forgetting"], abs=1e-3)
    assert report["forgetting"] > 0.05
    assert len(found.alarms) == report["alarms"] > 0
    assert {int(group): of["samples"] for _, group, of in found.groups} == {
        value: of["samples"] for value, of in report["groups"]["class"].items()
    }


@pytest.mark.parametrize("with_runs", [False, True])
def test_the_page_shows_monitors_alone_or_beside_runs(forgetful, tmp_path, with_runs):
    runs = [str(tmp_path / "runs")] if with_runs else []
    if with_runs:
        some_runs(tmp_path / "runs")
    made = CliRunner().invoke(app, ["report", *runs, "--monitor", str(forgetful[1]), "-o", str(tmp_path / "page.html")])
    assert made.exit_code == 0, made.output
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "The alarm was raised after" in text
    assert text.count("<polyline") >= 3
    assert ("er-mir" in text) is with_runs


@pytest.mark.parametrize(
    "content",
    ["", "[1, 2]", "{", '[1, "rehearse/forgetting", NaN]', '[-1, "rehearse/forgetting", 0.5]', '[1, "x", 1]', "9"],
)
def test_other_files_are_refused(tmp_path, content):
    path = tmp_path / "other.jsonl"
    path.write_text(content)
    with pytest.raises(DataError, match=r"other\.jsonl"):
        read_monitored(path)


def test_names_from_a_file_are_escaped(tmp_path):
    path = tmp_path / "hostile.jsonl"
    lines = [[1, "rehearse/heldout_accuracy", 0.5], [1, "rehearse/group_accuracy/<script>x/1", 0.5]]
    path.write_text("\n".join(map(json.dumps, lines)))
    CliRunner().invoke(app, ["report", "--monitor", str(path), "-o", str(tmp_path / "page.html")])
    assert "<script>x" not in (tmp_path / "page.html").read_text("utf-8")
