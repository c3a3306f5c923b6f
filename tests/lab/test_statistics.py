import math
import subprocess
import sys

import numpy as np
import pytest

from rehearse.errors import InvalidInput
from rehearse.lab.statistics import Published, paired_difference, seeds_needed, summary, verdict

NAN = float("nan")


def test_summary_by_hand():
    result = summary([1, 2, 3, 6])
    # Deviations −2, −1, 0, 3: sum of squares 14, over 3. Tables give t(0.975; 3) = 3.1824.
    sd = math.sqrt(14 / 3)
    assert (result.mean, result.median, result.n, result.values) == (3, 2.5, 4, (1, 2, 3, 6))
    assert result.sd == pytest.approx(sd)
    assert result.se == pytest.approx(sd / 2)
    assert result.interval == pytest.approx((3 - 3.1824 * sd / 2, 3 + 3.1824 * sd / 2), abs=1e-4)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(5, 2, size=(1000, 4))
    covered = sum(low <= 5 <= high for low, high in (summary(row).interval for row in draws))
    assert 925 <= covered <= 975  # ± 3.6 standard deviations; a normal interval would cover about 855


def test_one_value_has_no_interval_and_none_has_nothing():
    one = summary([0.5])
    assert (one.mean, one.median, one.interval, one.n) == (0.5, 0.5, None, 1)
    assert math.isnan(one.sd)
    assert math.isnan(one.se)
    none = summary([])
    assert (none.interval, none.n, none.values) == (None, 0, ())
    assert all(math.isnan(value) for value in (none.mean, none.median, none.sd, none.se))


def test_a_missing_value_is_not_left_out_silently():
    result = summary([0.5, NAN, 0.6])
    assert math.isnan(result.mean)
    assert result.interval is None
    assert result.n == 3


def test_paired_difference_takes_common_seeds_in_order():
    a = {2: 0.9, 0: 0.8, 1: 0.7, 7: 0.1}
    b = {0: 0.6, 1: 0.6, 2: 0.6, 9: 0.9}
    result = paired_difference(a, b)
    assert result.values == pytest.approx((0.2, 0.1, 0.3))
    assert (result.n, result.mean) == (3, pytest.approx(0.2))
    assert paired_difference(b, a).mean == pytest.approx(-0.2)


def test_pairing_removes_what_seeds_share():
    shared = np.random.default_rng(1).normal(0, 10, 8)
    a = {seed: value + 1 for seed, value in enumerate(shared)}
    b = dict(enumerate(shared))
    assert paired_difference(a, b).sd < 1e-12
    assert paired_difference(a, b).mean == pytest.approx(1)


def test_no_common_seeds():
    assert paired_difference({0: 1.0}, {1: 1.0}).n == 0


@pytest.mark.parametrize(("effect", "seeds"), [(0.2, 199), (0.5, 34), (0.8, 15), (1.0, 10)])
def test_seeds_needed_agrees_with_printed_power_tables(effect, seeds):
    assert seeds_needed(1, effect) == seeds
    assert seeds_needed(10, -10 * effect) == seeds


def test_seeds_needed_by_simulation():
    sd, effect = 2.6, 2.0
    n = seeds_needed(sd, effect)
    found = {}
    for count in (n - 3, n):
        draws = np.random.default_rng(2).normal(effect, sd, size=(2000, count))
        found[count] = np.mean([low > 0 or high < 0 for low, high in (summary(d).interval for d in draws)])
    assert found[n] == pytest.approx(0.8, abs=0.04)
    assert found[n - 3] < 0.8


def test_seeds_needed_at_the_edges():
    assert seeds_needed(1, 0) is None
    assert seeds_needed(NAN, 1) is None
    assert seeds_needed(1, NAN) is None
    assert seeds_needed(0, 0.1) == 2
    assert seeds_needed(1, 0.01) == 78489  # (1.959964 + 0.841621)² / 0.01²: the normal law is enough here
    with pytest.raises(InvalidInput, match="sd"):
        seeds_needed(-1, 1)
    with pytest.raises(InvalidInput, match="power"):
        seeds_needed(1, 1, power=1)


def test_verdict_by_hand():
    ours = summary([0.80, 0.82, 0.84])  # sd 0.02, se 0.011547
    published = Published(0.85, 0.02, 0.01)
    # The allowance is 1.96 √(0.011547² + 0.01²) = 0.029940.
    assert verdict(ours, published) == "below"
    assert verdict(ours, Published(0.8499, 0.02, 0.01)) == "within"
    assert verdict(ours, Published(0.7901, 0.02, 0.01)) == "within"
    assert verdict(ours, Published(0.79, 0.02, 0.01)) == "above"


def test_a_number_printed_without_uncertainty_is_exact():
    ours = summary([0.80, 0.82, 0.84])  # 1.96 × 0.011547 = 0.022632
    assert verdict(ours, Published(0.8426, None, None)) == "within"
    assert verdict(ours, Published(0.8427, None, None)) == "below"


def test_verdict_where_there_is_none():
    published = Published(0.85, 0.02, 0.01)
    assert verdict(summary([0.8, 0.9]), None) == "no number"
    assert verdict(summary([]), published) == "no number"
    assert verdict(summary([0.8, NAN]), published) == "no number"
    assert verdict(summary([0.8]), published) == "too few runs"


def test_importing_does_not_import_scipy():
    code = "import sys, rehearse.lab.statistics, rehearse.metrics; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
