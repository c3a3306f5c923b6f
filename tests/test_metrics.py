import math

import numpy as np
import pytest

from rehearse import metrics
from rehearse.errors import InvalidInput

NAN = float("nan")
# Task 0 is best after task 1; task 1 ends at its best; entries above the diagonal must not matter.
MATRIX = [
    [0.80, NAN, NAN],
    [0.90, 0.50, NAN],
    [0.60, 0.70, 1.00],
]
FUNCTIONS = [
    metrics.average_accuracy,
    metrics.forgetting,
    metrics.backward_transfer,
    metrics.learning_accuracy,
    metrics.accuracy_seen,
    metrics.anytime_accuracy,
    lambda matrix: metrics.pooled_accuracy(matrix, [1, 1]),
]


def test_by_hand():
    assert metrics.average_accuracy(MATRIX) == pytest.approx(2.3 / 3)
    assert metrics.learning_accuracy(MATRIX) == pytest.approx(2.3 / 3)
    assert metrics.backward_transfer(MATRIX) == pytest.approx((-0.2 + 0.2) / 2)
    np.testing.assert_allclose(metrics.accuracy_seen(MATRIX), [0.8, 0.7, 2.3 / 3])
    assert metrics.anytime_accuracy(MATRIX) == pytest.approx((0.8 + 0.7 + 2.3 / 3) / 3)


@pytest.mark.parametrize(
    ("definition", "expected"),
    [
        ("chaudhry18", (0.3 + 0.0) / 2),
        ("lopez-paz17", (0.2 - 0.2) / 2),
        ("first-last", (0.2 - 0.2) / 2),
        ("all-tasks", (0.3 + 0.0 + 0.0) / 3),
    ],
)
def test_forgetting_by_hand(definition, expected):
    assert metrics.forgetting(MATRIX, definition) == pytest.approx(expected)


def test_the_papers_forgetting_is_the_default_and_never_negative():
    improving = [[0.1, 0], [0.9, 0.5]]
    assert metrics.forgetting(improving) == 0
    assert metrics.forgetting(improving, "lopez-paz17") == pytest.approx(-0.8)
    assert metrics.forgetting(MATRIX) == metrics.forgetting(MATRIX, "chaudhry18")


def test_forgetting_does_not_read_a_task_before_it_was_learned():
    lucky = [[0.5, 0.99], [0.5, 0.60]]
    assert metrics.forgetting([*lucky]) == 0
    assert metrics.forgetting(lucky, "all-tasks") == 0


def test_forgetting_against_the_slow_way():
    a = np.random.default_rng(0).random((6, 6))
    slow = [max(a[i][j] for i in range(j, 6)) - a[5][j] for j in range(5)]
    assert metrics.forgetting(a) == pytest.approx(sum(slow) / 5)
    assert metrics.forgetting(a, "all-tasks") == pytest.approx(sum(slow) / 6)


def test_an_unknown_definition_names_the_known_ones():
    with pytest.raises(InvalidInput, match="chaudhry18, lopez-paz17"):
        metrics.forgetting(MATRIX, "mine")


def test_pooled_accuracy_counts_examples():
    # 60 of 100, 210 of 300, 100 of 100: 370 of 500.
    assert metrics.pooled_accuracy(MATRIX, [100, 300, 100]) == pytest.approx(370 / 500)
    assert metrics.pooled_accuracy(MATRIX, [7, 7, 7]) == pytest.approx(metrics.average_accuracy(MATRIX))


@pytest.mark.parametrize("sizes", [[1, 1], [1, 1, 0], [1, 1, -1]])
def test_pooled_accuracy_refuses_bad_sizes(sizes):
    with pytest.raises(InvalidInput, match="3 positive numbers"):
        metrics.pooled_accuracy(MATRIX, sizes)


def test_one_task_has_no_forgetting_to_speak_of():
    one = [[0.9]]
    for definition in ("chaudhry18", "lopez-paz17", "first-last"):
        assert math.isnan(metrics.forgetting(one, definition))
    assert metrics.forgetting(one, "all-tasks") == 0
    assert math.isnan(metrics.backward_transfer(one))
    assert metrics.average_accuracy(one) == metrics.learning_accuracy(one) == metrics.anytime_accuracy(one) == 0.9


def test_an_unmeasured_entry_is_not_skipped_silently():
    hole = [[0.8, NAN], [NAN, 0.7]]
    assert math.isnan(metrics.average_accuracy(hole))
    assert math.isnan(metrics.forgetting(hole))
    assert math.isnan(metrics.backward_transfer(hole))
    assert math.isnan(metrics.anytime_accuracy(hole))
    assert metrics.learning_accuracy(hole) == pytest.approx(0.75)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("bad", [[0.5, 0.6], [[0.5, 0.6]], [], [[]], [[[0.5]]], [[0.5], [0.5, 0.6]], "no", 0.5])
def test_bad_shapes_are_refused(function, bad):
    with pytest.raises(InvalidInput, match="accuracy matrix"):
        function(bad)


# Three tasks, two evaluations in each: the second task makes the first drop to 0.4 before it recovers to 0.8.
CURVE = [[0.5, NAN, NAN], [0.9, NAN, NAN], [0.4, 0.6, NAN], [0.8, 0.7, NAN], [0.6, 0.2, 0.3], [0.5, 0.6, 0.9]]
DURING = [0, 0, 1, 1, 2, 2]


def test_accuracy_over_time_by_hand():
    assert metrics.accuracy_seen(CURVE, DURING) == pytest.approx([0.5, 0.9, 0.5, 0.75, 1.1 / 3, 2 / 3])
    assert metrics.anytime_accuracy(CURVE, DURING) == pytest.approx((0.5 + 0.9 + 0.5 + 0.75 + 1.1 / 3 + 2 / 3) / 6)
    assert metrics.worst_case_accuracy(CURVE, DURING) == pytest.approx((0.4 + 0.2 + 0.9) / 3)
    # from 0.9 to 0.4 on the first task, and from (0.8 + 0.7) / 2 to (0.6 + 0.2) / 2 on the first two
    assert metrics.stability_gap(CURVE, DURING) == pytest.approx((0.5 + 0.35) / 2)


def test_with_one_evaluation_a_task_they_are_those_of_the_matrix():
    a = np.random.default_rng(0).random((4, 4))
    assert metrics.anytime_accuracy(a, range(4)) == metrics.anytime_accuracy(a)
    assert metrics.worst_case_accuracy(a, range(4)) == metrics.worst_case_accuracy(a)
    drops = [a[k, : k + 1].mean() - a[k + 1, : k + 1].mean() for k in range(3)]
    assert metrics.stability_gap(a) == pytest.approx(sum(drops) / 3)


def test_a_shuffled_stream_has_no_change_of_task():
    assert math.isnan(metrics.worst_case_accuracy(CURVE, [2] * 6))
    assert math.isnan(metrics.stability_gap(CURVE, [2] * 6))


@pytest.mark.parametrize("tasks", [[0, 0, 1], [0, 0, 1, 1, 3, 3], [1, 0, 1, 1, 2, 2], [-1, 0, 1, 1, 2, 2]])
def test_tasks_that_do_not_fit_the_evaluations_are_refused(tasks):
    with pytest.raises(InvalidInput, match="in order"):
        metrics.accuracy_seen(CURVE, tasks)
