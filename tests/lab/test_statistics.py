import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats as scipy_stats

from rehearse.errors import InvalidInput
from rehearse.lab.statistics import Published, paired_difference, seeds_needed, summary, verdict

NAN = float("nan")


def test_summary_by_hand():
    result = summary([1, 2, 3, 6])
    # Deviations −2, −1, 0, 3: sum of squares 14, over 3. Tables give t(0.975; 3) = 3.1824.
    sd = math.sqrt(14 / 3)
    assert (result.mean, result.median, result.n, result.values) == (3, 2.5, 4, (1, 2, 3, 6))
    assert result.sd == pytest.approx(sd)
    assert result.interval == pytest.approx((3 - 3.1824 * sd / 2, 3 + 3.1824 * sd / 2), abs=1e-4)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(5, 2, size=(1000, 4))
    covered = sum(low <= 5 <= high for low, high in (summary(row).interval for row in draws))
    assert 925 <= covered <= 975  # ± 3.6 standard deviations; a normal interval would cover about 855


def test_one_value_has_no_interval_and_none_has_nothing():
    one = summary([0.5])
    assert (one.mean, one.median, one.interval, one.n) == (0.5, 0.5, None, 1)
    assert math.isnan(one.sd)
    none = summary([])
    assert (none.interval, none.n, none.values) == (None, 0, ())
    assert all(math.isnan(value) for value in (none.mean, none.median, none.sd))


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


WELCH = scipy_stats.ttest_ind_from_stats  # with standard deviations, where `Published` has a standard error


@pytest.mark.parametrize("value", [0.70, 0.775, 0.78, 0.82, 0.85, 0.86, 0.90])
@pytest.mark.parametrize("runs", [3, 15, 100])
def test_a_number_differs_where_welchs_test_says_so(value: float, runs: int) -> None:
    ours = summary([0.80, 0.82, 0.84, 0.81])
    found = verdict(ours, Published(value, 0.02, 0.01, runs))
    test = WELCH(ours.mean, ours.sd, 4, value, 0.01 * math.sqrt(runs), runs, equal_var=False)
    assert (found.word == "differs") == (test.pvalue < 0.05)
    assert found.difference == pytest.approx(ours.mean - value)


def test_a_number_printed_without_uncertainty_is_exact() -> None:
    ours = summary([0.80, 0.82, 0.84])  # 4.3027 × 0.011547 = 0.049683
    assert verdict(ours, Published(0.8696, None, None)).word == "inconclusive"
    assert verdict(ours, Published(0.8697, None, None)).word == "differs"
    assert verdict(ours, Published(0.8697, None, None)).half == pytest.approx(0.049683, abs=1e-6)


def test_two_numbers_agree_only_where_the_interval_is_at_most_two_points_to_each_side() -> None:
    narrow, wide = summary([0.80, 0.81, 0.82]), summary([0.79, 0.81, 0.83])
    assert verdict(narrow, Published(0.80, None, None)).word == "inconclusive"  # 4.3027 × 0.0057735 = 0.0248
    assert verdict(summary([0.80, 0.81, 0.82, 0.81]), Published(0.80, None, None)).word == "agrees"  # 0.0130
    assert verdict(wide, Published(0.80, None, None), margin=0.05).word == "agrees"
    assert verdict(summary([80.0, 81.0, 82.0, 81.0]), Published(80.0, None, None), margin=2.0).word == "agrees"


def test_the_seeds_needed_are_the_fewest_that_end_an_inconclusive_verdict() -> None:
    published = Published(0.805, 0.01, 0.005, 15)
    found = verdict(summary([0.79, 0.81, 0.83]), published)
    assert found.word == "inconclusive"
    same = [0.81 + 0.02 * math.sqrt((found.seeds_needed - 1) / found.seeds_needed) * (-1) ** i for i in range(100)]
    for n, word in ((found.seeds_needed, "agrees"), (found.seeds_needed - 1, "inconclusive")):
        made = summary(same[:n])
        scaled = summary([0.81 + (v - made.mean) * 0.02 / made.sd for v in made.values])  # sd 0.02, as measured
        assert verdict(scaled, published).word == word


def test_no_number_of_seeds_makes_up_for_a_wide_published_interval() -> None:
    found = verdict(summary([0.79, 0.81, 0.83]), Published(0.80, 0.06, 0.03, 15))
    assert (found.word, found.seeds_needed) == ("inconclusive", None)


def test_verdict_where_there_is_none() -> None:
    published = Published(0.85, 0.02, 0.01)
    assert verdict(summary([0.8, 0.9]), None) is None
    assert verdict(summary([]), published) is None
    assert verdict(summary([0.8, NAN]), published) is None
    one = verdict(summary([0.8]), published)
    assert (one.word, one.half, one.seeds_needed) == ("inconclusive", None, None)
    assert verdict(summary([0.85, 0.85]), Published(0.85, None, None)).word == "agrees"


def test_importing_does_not_import_scipy():
    code = "import sys, rehearse.lab.statistics, rehearse.metrics; sys.exit('scipy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
