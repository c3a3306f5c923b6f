"""Scales and ticks of a drawing: from a value to a place on the paper."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Axis:
    """Values from ``low`` to ``high`` lie between the places ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...] = ()
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The place of a value; what lies outside stays at the edge."""
        value = min(max(value, self.low), self.high)
        if self.logarithmic:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 2)


def linear_axis(values: Iterable[float], start: float, end: float, *, least: float, most: float) -> Axis:
    """An axis with round ticks around the values, within ``least`` and ``most``."""
    inside = [min(max(value, least), most) for value in values] or [least, most]
    low, high = min(inside), max(inside)
    if high - low < 0.02:
        low, high = max(least, low - 0.02), min(most, high + 0.02)
    step = _round_step((high - low) / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(round(step * count, 10) for count in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], start, end, ticks)


def cost_axis(values: Iterable[float], start: float, end: float) -> Axis:
    """An axis for positive costs: from zero, or logarithmic where they differ by more than ten times."""
    positive = [value for value in values if value > 1e-6] or [1.0]
    low, high = min(positive), max(positive)
    if high / low <= 10:
        step = _round_step(high / 4)
        ticks = tuple(round(step * count, 10) for count in range(math.ceil(high * 1.02 / step) + 1))
        return Axis(0.0, ticks[-1], start, end, ticks)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 200 else (1,)
    marks = [step * 10.0**decade for decade in decades for step in steps]
    below, above = [mark for mark in marks if mark < low], [mark for mark in marks if mark > high]
    edges = (below[-1] if below else low / 2, above[0] if above else high * 2)
    return Axis(*edges, start, end, tuple(mark for mark in marks if edges[0] <= mark <= edges[1]), logarithmic=True)


def _round_step(size: float) -> float:
    """The next larger of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(size))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= size * (1 - 1e-9))
