"""Axes: round ticks around the values, and places by hand."""

import pytest

from rehearse.lab.report.axes import Axis, cost_axis, linear_axis


def test_places_are_linear_and_stay_inside():
    axis = Axis(0.0, 2.0, 100, 0)
    assert [axis.at(value) for value in (0.0, 0.5, 2.0, -1.0, 9.0)] == [100, 75, 0, 100, 0]


def test_places_of_a_logarithmic_axis():
    axis = Axis(1.0, 100.0, 0, 200, logarithmic=True)
    assert [axis.at(value) for value in (1, 10, 100)] == [0, 100, 200]


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([0.61, 0.93], (0.6, 0.7, 0.8, 0.9, 1.0)),
        ([0.0, 1.0], (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        ([-0.5, 0.2], (-0.6, -0.4, -0.2, 0.0, 0.2)),
        ([-0.4, 7.0], (-0.5, 0.0, 0.5, 1.0)),
    ],
)
def test_ticks_are_round_and_enclose_the_values_within_the_bounds(values, ticks):
    assert linear_axis(values, 0, 1, least=-1.0, most=1.0).ticks == pytest.approx(ticks)


@pytest.mark.parametrize("values", [[], [0.5], [1.0], [0.0]])
def test_few_or_equal_values_still_make_an_axis_that_holds_them(values):
    axis = linear_axis(values, 0, 1, least=0.0, most=1.0)
    assert axis.low < axis.high
    assert all(axis.low <= value <= axis.high for value in values)


def test_costs_start_at_zero_and_turn_logarithmic_beyond_ten_times():
    assert cost_axis([2.0, 7.0], 0, 1).ticks == (0, 2, 4, 6, 8)
    wide = cost_axis([1.5, 60.0], 0, 1)
    assert wide.logarithmic
    assert wide.ticks == (1, 2, 5, 10, 20, 50, 100)
    far = cost_axis([3.0, 4000.0], 0, 1)
    assert far.ticks == (1, 10, 100, 1000, 10000)
