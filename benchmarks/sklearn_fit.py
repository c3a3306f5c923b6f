"""scikit-learn's `fit` on the digits: the adapter beside `MLPClassifier`, both with their defaults.

    python benchmarks/sklearn_fit.py [--splits 5]

Each split holds out a quarter of the samples and is the seed of both. Times are CPU times of one thread, after a first
`fit` of a few samples, which loads what torch loads once.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from rehearse.adapters.sklearn import RehearsalClassifier


def fitted(model: Any, parts: list[Any]) -> tuple[float, float]:
    """Return CPU seconds of `fit`, and the accuracy in per cent on samples held out."""
    train, test, y_train, y_test = parts
    start = time.process_time()
    model.fit(train, y_train)
    return time.process_time() - start, 100 * model.score(test, y_test)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one split of a few samples, to see that it works")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)
    X, y = load_digits(return_X_y=True)
    X, y = (X[:200], y[:200]) if given.quick else (X, y)
    RehearsalClassifier(epochs=1).fit(X[:50], y[:50])
    print("| split | MLPClassifier, s | % | RehearsalClassifier, s | % | times as long | points |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    found = []
    for seed in range(1 if given.quick else given.splits):
        parts = train_test_split(X, y, random_state=seed)
        theirs, ours = (fitted(model(random_state=seed), parts) for model in (MLPClassifier, RehearsalClassifier))
        found.append((*theirs, *ours, ours[0] / theirs[0], ours[1] - theirs[1]))
    for name, values in [*enumerate(found), ("median", map(statistics.median, zip(*found, strict=True)))]:
        cells = [
            f"{value:{form}}" for value, form in zip(values, (".2f", ".1f", ".2f", ".1f", ".1f", "+.1f"), strict=True)
        ]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
