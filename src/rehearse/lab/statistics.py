"""What several seeds say together: means with intervals, paired differences, and verdicts.

Every interval is the 95 % interval of Student's t (Student 1908, "The Probable Error of a Mean"), for the
mean over seeds. A value that is nan makes the mean nan: a seed is never left out silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, isfinite, isnan, nan, sqrt
from typing import Literal

import numpy as np

from rehearse.errors import InvalidInput

Verdict = Literal["within", "above", "below", "no number", "too few runs"]
CONFIDENCE = 0.95


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
    def se(self) -> float:
        """The standard error of the mean, sd / √n; nan for fewer than two values."""
        return self.sd / sqrt(self.n) if self.n else nan


@dataclass(frozen=True, slots=True)
class Published:
    """A number that somebody printed, in our units: value ± plus_minus, and the standard error behind the ±.

    ``plus_minus`` and ``se`` are None where no ± was printed.
    """

    value: float
    plus_minus: float | None
    se: float | None


def summary(values: Iterable[float]) -> Summary:
    """Mean, interval, median and standard deviation of ``values``, one a seed."""
    kept = tuple(float(value) for value in values)
    n = len(kept)
    if not n:
        return Summary(nan, None, nan, nan, 0, ())
    mean = float(np.mean(kept))
    sd = float(np.std(kept, ddof=1)) if n > 1 else nan
    return Summary(mean, _interval(mean, sd, n), float(np.median(kept)), sd, n, kept)


def paired_difference(a: Mapping[int, float], b: Mapping[int, float]) -> Summary:
    """a − b seed by seed, on the seeds that both have, in their order; ``n`` says how many those are.

    Two methods that share a seed share initial weights, stream and memory, so most of what varies between
    seeds cancels, and far fewer of them are needed than for comparing two means.
    """
    return summary(a[seed] - b[seed] for seed in sorted(a.keys() & b.keys()))


def seeds_needed(sd: float, effect: float, power: float = 0.8) -> int | None:
    """How many seeds would settle a difference of ``effect`` whose standard deviation over seeds is ``sd``.

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


def verdict(ours: Summary, published: Published | None) -> Verdict:
    """Whether our mean agrees with a published one: "within" if |ours − published| ≤ 1.96 √(se² + se_p²).

    se is ours, sd / √n, and se_p the published one. Otherwise "above" or "below", which says where our number
    lies and not whether that is good. "no number" where either side has none, and "too few runs" where one
    run of ours cannot have a standard error. A number that was printed without its ± counts as exact.
    """
    if published is None or isnan(ours.mean):
        return "no number"
    if ours.n < 2:
        return "too few runs"
    difference = ours.mean - published.value
    if abs(difference) <= 1.96 * sqrt(ours.se**2 + (published.se or 0.0) ** 2):
        return "within"
    return "above" if difference > 0 else "below"


def _interval(mean: float, sd: float, n: int) -> tuple[float, float] | None:
    from scipy import stats

    if n < 2 or isnan(mean):
        return None
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1)) * sd / sqrt(n)
    return mean - half, mean + half
