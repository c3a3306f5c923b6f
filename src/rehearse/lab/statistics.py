"""What several seeds say together: means with intervals, paired differences, and verdicts.

Every interval is the 95 % interval of Student's t (Student 1908, "The Probable Error of a Mean"), for the
mean over seeds. A value that is nan makes the mean nan: a seed is never left out silently.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, inf, isfinite, isnan, nan, sqrt
from typing import Literal

import numpy as np

from rehearse.errors import InvalidInput

CONFIDENCE = 0.95
FEWEST = 3  # values whose interval is shown: that of two is 12.7 standard errors to each side
MARGIN = 0.02  # half an interval in which two accuracies agree: 2 points
MOST_SEEDS = 100_000  # beyond this, more seeds do not narrow an interval


@dataclass(frozen=True, slots=True)
class Summary:
    """Values over seeds: their mean, its 95 % interval, median and standard deviation.

    ``interval`` is None for fewer than two values; ``sd`` has n − 1 in the denominator and is nan for fewer
    than two values.
    """

    mean: float
    interval: tuple[float, float] | None
    median: float
    sd: float
    n: int
    values: tuple[float, ...]

    @property
    def shown(self) -> tuple[float, float] | None:
        """The interval to print or draw; None for fewer than `FEWEST` values."""
        return self.interval if self.n >= FEWEST else None


@dataclass(frozen=True, slots=True)
class Published:
    """A number that somebody printed, in our units: value ± plus_minus, and the standard error behind the ±.

    ``plus_minus`` and ``se`` are None where no ± was printed, ``runs`` is where their number was not.
    """

    value: float
    plus_minus: float | None
    se: float | None
    runs: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Ours − published: the difference, half its 95 % interval (None for one run of ours), and what follows.

    ``seeds_needed`` estimates how many seeds in all end an "inconclusive": None otherwise, and where it cannot be
    estimated or no number is enough because the published interval alone is too wide.
    """

    word: Literal["differs", "agrees", "inconclusive"]
    difference: float
    half: float | None
    seeds_needed: int | None = None


def summary(values: Iterable[float]) -> Summary:
    """Mean, interval, median and standard deviation of ``values``, one a seed."""
    kept = tuple(float(value) for value in values)
    n = len(kept)
    if not n:
        return Summary(nan, None, nan, nan, 0, ())
    mean = float(np.mean(kept))
    sd = float(np.std(kept, ddof=1)) if n > 1 else nan
    return Summary(mean, interval(mean, sd, n), float(np.median(kept)), sd, n, kept)


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Summary:
    """a − b seed by seed, on the seeds that both have, in their order; ``n`` says how many those are.

    Two methods that share a seed share initial weights, stream and memory, so most of what varies between
    seeds cancels, and far fewer of them are needed than for comparing two means.
    """
    return summary(a[seed] - b[seed] for seed in sorted(a.keys() & b.keys()))


def seeds_needed(sd: float, effect: float, power: float = 0.8) -> int | None:
    """Estimate how many seeds show a difference of ``effect`` whose standard deviation over seeds is ``sd``.

    The smallest n at which a true difference of that size is found, that is, at which its 95 % interval
    leaves out zero, with probability ``power``: P(t' > t_{0.975, n−1}) ≥ power, where t' is noncentral t
    with n − 1 degrees of freedom around √n · |effect| / sd (Cohen 1988, "Statistical Power Analysis for the
    Behavioral Sciences"). For a paired comparison ``sd`` is that of the differences. None where no number is
    enough (an effect of zero) or none can be told (either is nan).
    """
    from scipy import stats

    if sd < 0 or not 0 < power < 1:
        raise InvalidInput(f"sd must not be negative and power between 0 and 1; got sd={sd}, power={power}")
    if isnan(sd) or isnan(effect) or effect == 0:
        return None
    ratio = abs(effect) / sd if sd else float("inf")
    if not isfinite(ratio):
        return 2
    quantile = (1 + CONFIDENCE) / 2
    by_normal = ceil(float((stats.norm.ppf(quantile) + stats.norm.ppf(power)) / ratio) ** 2)
    n = max(2, by_normal)  # Student's t always asks for a few more than the normal law does
    if n > 1000:
        return n
    while stats.nct.sf(stats.t.ppf(quantile, n - 1), n - 1, sqrt(n) * ratio) < power:
        n += 1
    return n


def verdict(ours: Summary, published: Published | None, margin: float = MARGIN) -> Verdict | None:
    """Compare our mean with a published one by the 95 % interval of ours − published.

    The interval is Welch's (1947, "The Generalization of Student's Problem"): it has the standard errors of both
    sides, and degrees of freedom from the runs of both. A number printed without its ± counts as exact.

    Args:
        ours: Our values.
        published: The published number.
        margin: The largest half-width at which an interval around zero is agreement.

    Returns:
        "differs" if the interval excludes zero, "agrees" if it contains zero and its half-width is at most ``margin``,
        else "inconclusive", with the smallest number of seeds at which one of the other two would hold if the
        difference and the standard deviation stayed as they are. None where either side has no number.
    """
    if published is None or isnan(ours.mean):
        return None
    difference = ours.mean - published.value
    if ours.n < 2:
        return Verdict("inconclusive", difference, None)
    half = _half_width(ours.sd, ours.n, published)
    if abs(difference) > half:
        return Verdict("differs", difference, half)
    if half <= margin:
        return Verdict("agrees", difference, half)
    enough, counts = max(margin, abs(difference)), range(ours.n + 1, MOST_SEEDS)
    more = bisect_left(counts, True, key=lambda n: _half_width(ours.sd, n, published) <= enough)
    return Verdict("inconclusive", difference, half, counts[more] if more < len(counts) else None)


def _half_width(sd: float, n: int, published: Published) -> float:
    from scipy import stats

    variances = [(sd**2 / n, n), ((published.se or 0.0) ** 2, published.runs or inf)]
    spread = sum(variance**2 / (runs - 1) for variance, runs in variances)
    both = sum(variance for variance, _ in variances)
    degrees = both**2 / spread if spread else inf
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, degrees)) * sqrt(both)


def interval(mean: float, sd: float, n: int) -> tuple[float, float] | None:
    """The 95 % interval of a mean of ``n`` values; None for fewer than two."""
    from scipy import stats

    if n < 2 or isnan(mean):
        return None
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * sd / sqrt(n)
    return mean - half, mean + half
