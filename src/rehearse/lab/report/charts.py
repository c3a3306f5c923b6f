"""The charts of the page as plain geometry: what stands where, and what it says; the template draws it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..statistics import Summary, summary
from .axes import Axis, cost_axis, linear_axis
from .compare import own_cost
from .sections import Row
from .tables import spread

WIDTH, HEIGHT = 540, 340
LEFT, RIGHT, TOP, BOTTOM = 52, 508, 36, 286


@dataclass(frozen=True)
class Mark:
    """A point with the number behind it (``value``, in per cent), its interval, and its place among the marks."""

    x: float
    y: float
    value: float
    tip: str
    row: int
    column: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    label: str
    style: int
    marks: Sequence[Mark]
    dots: Sequence[tuple[float, float]] = ()
    reference: bool = False
    """Whether the only mark is of the end, so that a line across the chart helps to compare with it."""

    @property
    def line(self) -> str:
        return " ".join(f"{mark.x},{mark.y}" for mark in self.marks)

    @property
    def band(self) -> str:
        """The outline of the intervals: along the upper ends, back along the lower ones."""
        known = [mark for mark in self.marks if mark.low is not None and mark.high is not None]
        there = [f"{mark.x},{mark.high}" for mark in known]
        back = [f"{mark.x},{mark.low}" for mark in reversed(known)]
        return " ".join(there + back) if len(known) > 1 else ""


@dataclass(frozen=True)
class Chart:
    kind: str
    title: str
    x_label: str
    y_label: str
    x: Axis
    y: Axis
    x_ticks: Sequence[tuple[float, str]]
    y_ticks: Sequence[tuple[float, str]]
    series: Sequence[Series]

    @property
    def table(self) -> list[list[float | None]]:
        """The numbers behind the marks: a row a task, a column a series, None where there is none."""
        columns = [{mark.column: mark.value for mark in series.marks} for series in self.series]
        tasks = max((task for column in columns for task in column), default=-1) + 1
        return [[column.get(task) for column in columns] for task in range(tasks)]


@dataclass(frozen=True)
class Cell:
    row: int
    column: int
    share: float | None
    text: str
    tip: str


@dataclass(frozen=True)
class HeatMap:
    label: str
    tasks: int
    size: float
    cells: Sequence[Cell]


# ------------------------------------------------------------------------------------------------------ over tasks


def seen_chart(rows: Sequence[Row]) -> Chart:
    """Accuracy on the tasks seen so far, after each task: the mean of a(i, j) over j ≤ i, over seeds."""

    def after(matrices: np.ndarray, task: int) -> np.ndarray:
        return np.asarray(matrices[:, task, : task + 1].mean(axis=1))

    words = "Accuracy on the tasks seen so far", "tasks learned so far", "accuracy in %"
    return _over_tasks("seen", words, rows, after)


def forgetting_chart(rows: Sequence[Row]) -> Chart:
    """What each task lost: its best accuracy since it was learned, minus the final one; not for the last task."""

    def lost(matrices: np.ndarray, task: int) -> np.ndarray:
        return np.asarray(matrices[:, task:, task].max(axis=1) - matrices[:, -1, task])

    words = "Forgetting, task by task", "task", "accuracy lost, in points"
    return _over_tasks("forgetting", words, rows, lost)


def _over_tasks(
    kind: str, words: tuple[str, str, str], rows: Sequence[Row], measure: Callable[[np.ndarray, int], np.ndarray]
) -> Chart:
    """A chart with these words as its title and beside its axes; of forgetting the rows stand side by side."""
    aside, word = (True, "task") if kind == "forgetting" else (False, "after task")
    most = max(row.matrices.shape[1] for row in rows)
    places = most - aside
    measured: list[tuple[Row, dict[int, Summary]]] = []
    for row in rows:
        tasks = range(row.matrices.shape[1] - aside)
        numbers = {task: summary(measure(row.matrices, task)) for task in tasks}
        measured.append((row, {task: value for task, value in numbers.items() if not np.isnan(value.mean)}))
    measured = [(row, numbers) for row, numbers in measured if numbers]
    everything = [value for _, numbers in measured for each in numbers.values() for value in _extent(each)]
    y = linear_axis([*everything, *([0.0] if aside else [])], BOTTOM, TOP, least=0.0, most=1.0)
    x = Axis(-0.5, places - 0.5, LEFT, RIGHT) if aside else Axis(0, max(places - 1, 1), LEFT + 14, RIGHT - 14)
    slot = (RIGHT - LEFT) / max(places, 1) * 0.7 / max(len(measured), 1)
    series = []
    for index, (row, numbers) in enumerate(measured):
        offset = (index - (len(measured) - 1) / 2) * min(slot, 16) if aside else 0.0
        marks = [
            _mark(x.at(task) + offset, y, value, f"{row.label}, {word} {task + 1}", index, task)
            for task, value in numbers.items()
        ]
        series.append(Series(row.label, row.style, marks, reference=not aside and len(marks) == 1 and places > 1))
    every = -(-places // 10)
    x_ticks = [(x.at(task), str(task + 1)) for task in range(places) if (task + 1) % every == 0 or every == 1]
    return Chart(kind, *words, x, y, x_ticks, _percent_ticks(y), series)


def time_chart(rows: Sequence[Row]) -> Chart:
    """Accuracy on the tasks seen so far over the whole stream, of the rows that were evaluated within tasks."""
    measured = [(row, {step: summary(values) for step, values in row.over_time.items()}) for row in rows]
    measured = [(row, points) for row, points in measured if points]
    everything = [end for _, points in measured for point in points.values() for end in _extent(point)]
    x = linear_axis(
        [0.0, *(step for _, points in measured for step in points)], LEFT, RIGHT, least=0.0, most=float("inf")
    )
    y = linear_axis(everything, BOTTOM, TOP, least=0.0, most=1.0)
    series = []
    for index, (row, points) in enumerate(measured):
        tips = {step: f"{row.label}, after {step:,} steps" for step in points}
        marks = [_mark(x.at(at), y, points[at], tips[at], index, column) for column, at in enumerate(points)]
        series.append(Series(row.label, row.style, marks))
    x_ticks = [(x.at(tick), significant(tick)) for tick in x.ticks]
    title = "Accuracy over time"
    return Chart("time", title, "steps", "accuracy in %", x, y, x_ticks, _percent_ticks(y), series)


def curves_chart(title: str, curves: Mapping[str, Mapping[int, float]]) -> Chart:
    """Fractions of one learner over its stream: each curve has values after so many samples."""
    x = linear_axis([0, *(at for curve in curves.values() for at in curve)], LEFT, RIGHT, least=0.0, most=float("inf"))
    y = linear_axis([value for curve in curves.values() for value in curve.values()], BOTTOM, TOP, least=-1, most=1)
    series = []
    for style, (label, curve) in enumerate(curves.items()):
        tips = {at: f"{label}, after {at:,} samples\n{100 * curve[at]:.1f} %" for at in sorted(curve)}
        places = [(x.at(at), y.at(curve[at]), round(100 * curve[at], 4), tip) for at, tip in tips.items()]
        series.append(Series(label, style, [Mark(*place, style, column) for column, place in enumerate(places)]))
    x_ticks = [(x.at(tick), significant(tick)) for tick in x.ticks]
    return Chart("time", title, "samples", "%", x, y, x_ticks, _percent_ticks(y), series)


# ------------------------------------------------------------------------------------------------------------ cost


def cost_chart(rows: Sequence[Row], cost: str, title: str, x_label: str, unit: str) -> Chart:
    """Final accuracy against what a run cost: each run a dot, each method a mark at its means."""
    points = [(row, _cost_points(row, cost)) for row in rows]
    points = [(row, pairs) for row, pairs in points if pairs]
    x = cost_axis([price for _, pairs in points for price, _ in pairs], LEFT, RIGHT)
    numbers = [summary(accuracy for _, accuracy in pairs) for _, pairs in points]
    y = linear_axis([end for value in numbers for end in _extent(value)], BOTTOM, TOP, least=0.0, most=1.0)
    series = []
    for index, ((row, pairs), accuracy) in enumerate(zip(points, numbers, strict=True)):
        price = sum(price for price, _ in pairs) / len(pairs)
        said = f"{row.label}, {significant(price)} {unit}"
        mark = _mark(x.at(price), y, accuracy, said, index, 0)
        small = [(x.at(price), y.at(accuracy)) for price, accuracy in pairs]
        series.append(Series(row.label, row.style, [mark], small))
    x_ticks = [(x.at(tick), significant(tick)) for tick in x.ticks]
    return Chart(f"cost-{cost}", title, x_label, "final accuracy in %", x, y, x_ticks, _percent_ticks(y), series)


def _cost_points(row: Row, cost: str) -> list[tuple[float, float]]:
    pairs = [(own_cost(run.result["cost"]).get(cost), run.result["metrics"]["accuracy"]) for run in row.runs]
    return [(price, accuracy) for price, accuracy in pairs if price is not None and price > 0 and accuracy is not None]


# -------------------------------------------------------------------------------------------------------- matrices


def heat_map(row: Row) -> HeatMap:
    """The accuracy matrix, averaged over seeds: rows are tasks learned, columns are tasks tested."""
    tasks = row.matrices.shape[1]
    cells = []
    for learned in range(tasks):
        for tested in range(tasks):
            numbers = summary(row.matrices[:, learned, tested])
            where = f"{row.label}, after task {learned + 1}, on task {tested + 1}"
            if tested > learned or np.isnan(numbers.mean):
                unknown = "not seen yet" if tested > learned else "not measured"
                cells.append(Cell(learned, tested, None, "", f"{where}\n{unknown}"))
            else:
                tip = f"{where}\n{in_words(numbers)}"
                cells.append(Cell(learned, tested, round(numbers.mean, 4), f"{100 * numbers.mean:.0f}", tip))
    return HeatMap(row.label, tasks, round(240 / tasks, 2), cells)


# --------------------------------------------------------------------------------------------------- inside tables


def strip_axis(numbers: Sequence[dict[str, Any] | None], *, least: float, most: float, zero: bool = False) -> Axis:
    """One scale for the small drawings of a column."""
    values = [end for each in numbers if each is not None for end in _extent(summary(each["values"]))]
    return linear_axis(values + ([0.0] if zero else []), 6, 134, least=least, most=most)


# --------------------------------------------------------------------------------------------------------- helpers


def in_words(numbers: Summary) -> str:
    """As in "85.6 % ± 4.1, mean of 4 runs"."""
    runs = "one run" if numbers.n == 1 else f"mean of {numbers.n} runs"
    return f"{100 * numbers.mean:.1f} % {spread(numbers, 100.0)}".rstrip() + f", {runs}"


def significant(value: float) -> str:
    """Three digits that count, without an exponent up to millions."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _mark(x: float, y: Axis, numbers: Summary, name: str, row: int, column: int) -> Mark:
    low, high = (None, None) if numbers.shown is None else map(y.at, numbers.shown)
    value = round(100 * numbers.mean, 4)
    return Mark(round(x, 2), y.at(numbers.mean), value, f"{name}\n{in_words(numbers)}", row, column, low, high)


def _extent(numbers: Summary) -> list[float]:
    """What an axis must hold: the values, and the interval where it is shown."""
    return [*numbers.values, *(numbers.shown or ())]


def _percent_ticks(axis: Axis) -> list[tuple[float, str]]:
    return [(axis.at(tick), f"{100 * tick:.4g}") for tick in axis.ticks]
