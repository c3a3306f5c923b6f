"""Figures of the controls: means and 95 % intervals over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

from rehearse.lab.paper.outcome import MOMENTS, Outcome, values_of
from rehearse.lab.paper.strong import AS_INTERFERED, INTERFERED, LOSS, UNIFORM
from rehearse.lab.paper.targets import PARTS
from rehearse.lab.report.figures import Draw, seeds_of
from rehearse.lab.statistics import Summary, summary
from rehearse.metrics import accuracy_seen

from .comparisons import common_costs
from .strong import on_frontier, points

# Okabe and Ito's colours; the marker says the same in black and white.
LOOKS = (
    ("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "v"), ("#56B4E9", "D"), ("#E69F00", "P"),
    ("#000000", "X"), ("#999999", "*"), ("#661100", "<"), ("#44AA99", ">"),
)  # fmt: skip
FIRST = {"ER": 0, "er": 0, "ER-MIR": 1, "er-mir": 1}  # the two that are in most figures look alike in all


def _rows(outcome: Outcome) -> list[str]:
    return list(dict.fromkeys(row for (row, _), runs in outcome.runs.items() if runs))


def _columns(outcome: Outcome) -> list[str]:
    return list(dict.fromkeys(column for _, column in outcome.runs))


def _looks(rows: Sequence[str]) -> dict[str, tuple[str, str]]:
    others = iter(LOOKS[2:] * len(rows))
    return {row: LOOKS[FIRST[row]] if row in FIRST else next(others) for row in rows}


def _measured(outcome: Outcome, row: str, column: str, metric: str) -> Summary:
    return summary(values_of(outcome.runs.get((row, column), {}), metric).values())


def _half(point: Summary) -> float:
    """Half the interval, in per cent; one seed has none, which is not a certain number."""
    return nan if point.interval is None else 50 * (point.interval[1] - point.interval[0])


def _series(outcome: Outcome, axes: Any, columns: Sequence[str], names: Sequence[str], metric: str, line: str) -> None:
    """One row of the target after another over the columns, each set aside a little."""
    rows = _rows(outcome)
    looks = _looks(rows)
    for number, row in enumerate(rows):
        shift = (0.5 if line == "none" else 0.1) / len(rows) * (number - (len(rows) - 1) / 2)
        found = [(place, _measured(outcome, row, column, metric)) for place, column in enumerate(columns)]
        found = [(place, point) for place, point in found if point.n]
        if found:
            colour, marker = looks[row]
            axes.errorbar(
                [place + shift for place, _ in found],
                [100 * point.mean for _, point in found],
                [_half(point) for _, point in found],
                color=colour, marker=marker, linestyle=line, capsize=2,
                label=f"{row} (n = {seeds_of(outcome, row, _columns(outcome))})",
            )  # fmt: skip
    axes.set_xticks(range(len(columns)), names)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    axes.set_ylabel(f"{metric} (%)")
    axes.grid(axis="x", visible=False)


def by_column(outcome: Outcome, figure: Any) -> None:
    """Accuracy and forgetting of each row under each column; columns in groups stand side by side."""
    columns = _columns(outcome)
    if all(", " in column for column in columns):
        _side_by_side(outcome, figure, "none")
        return
    figure.set_size_inches(6.5, 3.0)
    panels = figure.subplots(1, 2)
    for axes, metric in zip(panels, ("accuracy", "forgetting"), strict=True):
        _series(outcome, axes, columns, columns, metric, "none")
    _legend_below(figure, panels[0])


def by_setting(outcome: Outcome, figure: Any) -> None:
    """Accuracy and forgetting, a stream on each side, over the values of one setting."""
    _side_by_side(outcome, figure, "-")


def _side_by_side(outcome: Outcome, figure: Any, line: str) -> None:
    """Accuracy above and forgetting below, over columns named "GROUP, NAME", a group on each side."""
    figure.set_size_inches(6.0, 4.2)
    groups: dict[str, list[str]] = {}
    for column in _columns(outcome):
        groups.setdefault(column.partition(", ")[0], []).append(column)
    panels = figure.subplots(2, len(groups), squeeze=False)
    for side, (group, columns) in enumerate(groups.items()):
        names = [column.partition(", ")[2] for column in columns]
        for level, metric in enumerate(("accuracy", "forgetting")):
            _series(outcome, panels[level][side], columns, names, metric, line)
        panels[0][side].set_title(f"{group} MNIST" if group in ("Split", "Permuted") else group, fontsize=8)
    _legend_below(figure, panels[0][0])


def _legend_below(figure: Any, axes: Any) -> None:
    """Beside the data, which no corner is sure to be free of."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4))


def against_cost(outcome: Outcome, figure: Any) -> None:
    """Accuracy of all runs against the CPU seconds of those that compare; the line is what ER-MIR costs."""
    columns = [column for column in _columns(outcome) if common_costs(outcome, column)]
    if not columns:
        figure.text(0.5, 0.5, "no CPU seconds that compare", ha="center", va="center")
        return
    figure.set_size_inches(2.8 * len(columns) + 1.8, 2.8)
    looks = _looks(_rows(outcome))
    for axes, column in zip(figure.subplots(1, len(columns), squeeze=False)[0], columns, strict=True):
        costs = common_costs(outcome, column)
        for row, (colour, marker) in looks.items():
            point = _measured(outcome, row, column, "accuracy")
            if row in costs and point.n:
                seconds = costs[row]
                axes.errorbar(
                    [seconds], [100 * point.mean], [_half(point)],
                    color=colour, marker=marker, linestyle="none", capsize=2, label=f"{row} (n = {point.n})",
                )  # fmt: skip
                if row == "ER-MIR":
                    axes.axvline(seconds, color=colour, linewidth=0.6, linestyle=":")
        axes.set_xlabel("CPU seconds a run")
        axes.set_ylabel("accuracy (%)")
        axes.set_title(column, fontsize=8)
    figure.legend(
        *axes.get_legend_handles_labels(), loc="outside right center"
    )  # columns are ways to ask the same runs


def by_row(outcome: Outcome, figure: Any) -> None:
    """A line for each row: accuracy, forgetting, and where there was a search what it did to what it seeks."""
    rows = _rows(outcome)
    sought, (column,) = outcome.target.sought, _columns(outcome)
    figure.set_size_inches(6.5, 0.9 + 0.26 * len(rows))
    panels = figure.subplots(1, 3 if sought else 2, sharey=True)
    for axes, metric in zip(panels, ("accuracy", "forgetting"), strict=False):
        points = [_measured(outcome, row, column, metric) for row in rows]
        heights = [height for height, point in enumerate(points) if point.n]
        known = [point for point in points if point.n]
        axes.errorbar(
            [100 * point.mean for point in known], heights, xerr=[_half(point) for point in known],
            color=LOOKS[0][0], marker="o", linestyle="none", capsize=2,
        )  # fmt: skip
        axes.set_xlabel(f"{metric} (%)")
    if sought:
        _arrows(outcome, panels[2], rows, column, sought)
    panels[0].set_yticks(range(len(rows)), [f"{row} (n = {len(outcome.runs[row, column])})" for row in rows])
    panels[0].set_ylim(len(rows) - 0.5, -0.5)
    for axes in panels:
        axes.grid(axis="y", visible=False)


def _arrows(outcome: Outcome, axes: Any, rows: Sequence[str], column: str, sought: str) -> None:
    for height, row in enumerate(rows):
        before, after = (_measured(outcome, row, column, f"{sought} {when}") for when in MOMENTS)
        if before.n and after.n:
            axes.plot([before.mean], [height], color="#999999", marker="o", linestyle="none")
            axes.annotate(
                "", (after.mean, height), (before.mean, height),
                arrowprops={"arrowstyle": "->", "color": LOOKS[1][0], "linewidth": 1.2},
            )  # fmt: skip
            axes.plot([after.mean], [height], color=LOOKS[1][0], marker=".", linestyle="none")
    axes.set_xlabel(f"{sought},\nbefore → after (nats)")


def paired(outcome: Outcome, figure: Any) -> None:
    """Every paired difference in accuracy with its 95 % interval, the columns of the target one below another."""
    found = [one for one in outcome.differences if one.metric == "accuracy"]
    places = list(dict.fromkeys(one.column for one in found))
    figure.set_size_inches(6.5, 0.8 + 0.24 * (len(found) + len(places)))
    axes = figure.subplots()
    heights: list[tuple[float, str]] = []
    for place, (colour, marker) in zip(places, LOOKS, strict=False):
        inside = [one for one in found if one.column == place]
        start = len(heights) + places.index(place)
        axes.errorbar(
            [100 * one.ours.mean for one in inside], range(start, start + len(inside)),
            xerr=[_half(one.ours) for one in inside],
            color=colour, marker=marker, linestyle="none", capsize=2, label=place,
        )  # fmt: skip
        heights += [(start + i, f"{one.later} − {one.earlier} (n = {one.ours.n})") for i, one in enumerate(inside)]
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks([height for height, _ in heights], [words for _, words in heights])
    axes.invert_yaxis()
    axes.set_xlabel("difference in accuracy (points)")
    axes.grid(axis="y", visible=False)
    _legend_below(figure, axes)


def slide(outcome: Outcome, figure: Any) -> None:
    """What choosing samples adds to samples at random, in each cell: at equal samples, and at equal CPU seconds."""
    shown = {
        (INTERFERED, UNIFORM): "most interfered, equal samples",
        (INTERFERED, AS_INTERFERED): "most interfered, equal CPU seconds",
        (LOSS, UNIFORM): "highest loss, equal samples",
    }
    columns = _columns(outcome)
    figure.set_size_inches(6.0, 1.2 + 0.45 * len(columns))
    axes = figure.subplots()
    for place, (pair, label) in enumerate(shown.items()):
        found = {one.column: one.ours for one in outcome.differences if (one.later, one.earlier) == pair
                 and one.metric == "accuracy"}  # fmt: skip
        axes.errorbar(
            [100 * value.mean for value in found.values()],
            [columns.index(column) + 0.2 * (place - 1) for column in found],
            xerr=[_half(value) for value in found.values()],
            color=LOOKS[place][0], marker=LOOKS[place][1], linestyle="none", capsize=2, label=label,
        )  # fmt: skip
    axes.axvline(0, color="black", linewidth=0.6)
    axes.set_yticks(range(len(columns)), columns)
    axes.set_ylim(len(columns) - 0.5, -0.5)
    axes.set_xlabel("points of accuracy beyond samples at random, 95 % intervals")
    axes.grid(axis="y", visible=False)
    _legend_below(figure, axes)


def frontier(outcome: Outcome, figure: Any) -> None:
    """Accuracy against CPU seconds on one kind of processor; the line joins the methods that none beats for less."""
    figure.set_size_inches(5.5, 3.6)
    axes, (condition, found) = figure.subplots(), points(outcome)
    best = on_frontier(found)
    axes.step(
        [found[row].cpu_seconds for row in best], [100 * found[row].accuracy.mean for row in best],
        where="post", color="#999999", linewidth=0.8,
    )  # fmt: skip
    for row, (seconds, accuracy) in found.items():
        colour, marker = LOOKS[1 if row in best else 0]
        axes.errorbar(
            [seconds],
            [100 * accuracy.mean],
            [_half(accuracy)],
            color=colour,
            marker=marker,
            linestyle="none",
            capsize=2,
        )
        axes.annotate(row, (seconds, 100 * accuracy.mean), xytext=(4, 2), textcoords="offset points", fontsize=6)
    axes.set_xscale("log")
    axes.set_xlabel(f"CPU seconds a run ({condition or 'no known processor'})")
    axes.set_ylabel("accuracy (%)")


def over_time(outcome: Outcome, figure: Any) -> None:
    """Accuracy on the tasks seen so far over the whole stream: mean and 95 % interval over seeds."""
    figure.set_size_inches(6.0, 3.0)
    axes, looks = figure.subplots(), _looks(_rows(outcome))
    for (row, _), runs in outcome.runs.items():
        steps = {tuple(one["step"] for one in result["within"]) for result in runs.values()}
        if len(steps) == 1:
            curves = [
                accuracy_seen([[nan if v is None else v for v in one["test"]] for one in within],
                              [one["task"] for one in within])
                for within in (result["within"] for result in runs.values())
            ]  # fmt: skip
            known, (where,) = [summary(values) for values in zip(*curves, strict=True)], steps
            middle, half = [100 * point.mean for point in known], [_half(point) for point in known]
            axes.plot(where, middle, color=looks[row][0], label=f"{row} (n = {len(runs)})")
            low, high = ([m + sign * h for m, h in zip(middle, half, strict=True)] for sign in (-1, 1))
            axes.fill_between(where, low, high, color=looks[row][0], alpha=0.18, linewidth=0)
    axes.set_xlabel("batches learned")
    axes.set_ylabel("accuracy on tasks seen so far (%)")
    _legend_below(figure, axes)


HOW: Mapping[str, Draw] = {
    "strong-parts": paired,
    "strong-retrieval": slide,
    "strong-frontier": frontier,
    "strong-waiting": by_column,
    "controls-batchnorm": by_column,
    "controls-cost": against_cost,
    "controls-sensitivity": by_setting,
    "controls-generative": by_row,
    "controls-hybrid": by_row,
    "controls-retrieval-and-loss": by_column,
}
CONTROL_FIGURES: Mapping[str, Draw] = {name: HOW[part] for part, names in PARTS.items() for name in names} | {
    "controls-losses-mnist": by_row,
    "strong-memory": by_column,
    "strong-time": over_time,
}
