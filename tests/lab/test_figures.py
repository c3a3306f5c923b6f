"""Figures from results: they are drawn, they hold the data, and the same results give the same file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from made_results import made_result

pytest.importorskip("matplotlib", reason="the extra lab is not installed")

from matplotlib.figure import Figure

from rehearse.errors import MissingExtra
from rehearse.lab.paper.outcome import Outcome, Results, outcome
from rehearse.lab.paper.targets import TARGETS
from rehearse.lab.report.figures import by_codes, seen_so_far, write_figure


def figure4() -> Outcome:
    entries = {e.row: e for e in TARGETS["figure4"].entries}
    results = [made_result(entries["ER"].spec(seed), 0.7 + seed / 100) for seed in range(3)]
    results += [made_result(entries["ER-MIR"].spec(seed), 0.75 + seed / 100) for seed in range(3)]
    return outcome(TARGETS["figure4"], Results(results))


def test_figure_4_has_a_curve_and_a_band_for_each_method_that_was_run() -> None:
    figure = Figure()
    seen_so_far(figure4(), figure)
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["ER (n = 3)", "ER-MIR (n = 3)"]
    assert len(axes.collections) == 2
    # until the last task all those seen stand by what is forgotten higher; those to come would lower the mean
    means = [81] * 9 + [71]
    assert np.allclose(axes.lines[0].get_ydata(), means)


def test_figures_are_written_as_png_and_svg_and_only_where_there_is_something(tmp_path: Path) -> None:
    paths = write_figure(figure4(), tmp_path)
    assert [path.name for path in paths] == ["figure4.png", "figure4.svg"]
    before = paths[1].read_bytes()
    write_figure(figure4(), tmp_path)
    assert paths[1].read_bytes() == before
    assert write_figure(outcome(TARGETS["figure4"], Results([])), tmp_path) == []
    assert write_figure(outcome(TARGETS["table1"], Results([])), tmp_path) == []


@pytest.mark.parametrize("name", ["figure5", "figure6", "figure7"])
def test_figures_of_the_hybrid_have_accuracy_and_forgetting_by_the_number_of_codes(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    results = [
        made_result(
            entry.alone(seed) if entry.treatment else entry.spec(seed),
            0.3 + number / 100 + seed / 50,
            0.2 - number / 100,
        )
        for number, entry in enumerate(target.entries)
        for seed in range(2)
    ]
    found = outcome(target, Results(results))
    figure = Figure()
    by_codes(found, figure)
    accuracy, forgetting = figure.axes
    rows = list(dict.fromkeys(entry.row for entry in target.entries))
    for axes, wanted in ((accuracy, lambda n: 31 + n), (forgetting, lambda n: 20 - n)):
        for place, container in enumerate(axes.containers):
            assert container.get_label() == f"{rows[place]} (n = 2)"
            heights = [wanted(number) for number, entry in enumerate(target.entries) if entry.row == rows[place]]
            assert np.allclose(container.lines[0].get_ydata(), heights)
    assert [path.name for path in write_figure(found, tmp_path)] == [f"{name}.png", f"{name}.svg"]


def test_what_was_not_run_is_a_gap_and_one_seed_has_no_interval() -> None:
    target = TARGETS["figure5"]
    wanted = {("AE-Random", "1,000 codes"): 3, ("AE-Random", "10,000 codes"): 1}
    results = [
        made_result(entry.spec(seed), 0.3 + seed / 50, 0.2)
        for entry in target.entries
        for seed in range(wanted.get((entry.row, entry.column), 0))
    ]
    figure = Figure()
    by_codes(outcome(target, Results(results)), figure)
    accuracy = figure.axes[0]
    container, other, _ = accuracy.containers
    assert other.get_label() == "AE-MIR (not run)"
    assert np.isnan(np.array(other.lines[0].get_ydata(), dtype=float)).all()
    assert container.get_label() == "AE-Random (n = 3, 0, 1)"
    assert np.allclose(np.array(container.lines[0].get_ydata(), dtype=float), [32, np.nan, 30], equal_nan=True)
    (bars,) = container.lines[2]
    drawn = [segment for segment in bars.get_segments() if len(segment) and np.isfinite(segment).all()]
    assert len(drawn) == 1, "an interval of one seed or of none"


def test_codes_are_to_scale_and_no_line_goes_through_a_single_run() -> None:
    target = TARGETS["figure5"]
    wanted = {"1,000 codes": 3, "5,000 codes": 2, "10,000 codes": 1}
    results = [
        made_result(entry.spec(seed), 0.3 + seed / 50, 0.2)
        for entry in target.entries
        for seed in range(wanted[entry.column])
    ]
    figure = Figure()
    by_codes(outcome(target, Results(results)), figure)
    accuracy = figure.axes[0]
    assert list(accuracy.get_xticks()) == [1000, 5000, 10000]
    (low, middle, high) = accuracy.transData.transform([(x, 30) for x in (1000, 5000, 10000)])[:, 0]
    assert (high - middle) / (middle - low) == pytest.approx(5 / 4)
    joined = [line for line in accuracy.lines if line.get_linestyle() == "-"]
    assert len(joined) == 3
    assert all(np.isfinite(line.get_ydata()).tolist() == [True, True, False] for line in joined)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"rehearse-torch\[lab\]"):
        write_figure(figure4(), tmp_path)
