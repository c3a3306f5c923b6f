"""The river adapter's settings on river's synthetic streams, and its defaults beside ARF on river's data sets.

    python benchmarks/river_defaults.py choose     # synthetic streams alone; each setting differs in what it names
    python benchmarks/river_defaults.py compare    # the defaults on data that had no part in the choice
    python benchmarks/river_defaults.py ordered    # ImageSegments class by class, with a scaler inside or in front

The first two print progressive accuracy (test, then train), and microseconds of CPU time per sample with predictions;
the last one prints the accuracy on the 30 % of the samples that were held out.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch
from river import datasets, forest, metrics, preprocessing
from river.datasets import synth
from sklearn.preprocessing import StandardScaler

from rehearse.adapters.river import RehearsalClassifier
from rehearse.adapters.sklearn import RehearsalClassifier as SklearnClassifier

Samples = Iterable[tuple[Mapping[Any, Any], Any]]
SYNTHETIC: dict[str, Callable[[int], Samples]] = {
    "SEA": lambda seed: synth.SEA(variant=0, noise=0.1, seed=seed),
    "Agrawal": lambda seed: synth.Agrawal(classification_function=seed % 10, seed=seed),
    "RandomRBF": lambda seed: synth.RandomRBF(seed_model=seed, seed_sample=seed, n_classes=4, n_features=10),
    "RandomRBFDrift": lambda seed: synth.RandomRBFDrift(
        seed_model=seed, seed_sample=seed, n_classes=4, n_features=10, change_speed=0.1, n_drift_centroids=25
    ),
    "Hyperplane": lambda seed: synth.Hyperplane(seed=seed, n_features=10, n_drift_features=3, mag_change=0.005),
    "LED": lambda seed: synth.LED(seed=seed, noise_percentage=0.1, irrelevant_features=True),
    "Sine, a concept after the other": lambda seed: synth.ConceptDriftStream(
        synth.Sine(classification_function=0, seed=seed),
        synth.Sine(classification_function=2, seed=seed),
        position=750,
        width=100,
        seed=seed,
    ),
}
REAL: dict[str, Callable[[], Samples]] = {
    "Phishing": datasets.Phishing,
    "Bananas": datasets.Bananas,
    "ImageSegments": datasets.ImageSegments,
}
MIR, UNIFORM = {"retrieval": "most-interfered"}, {"retrieval": "uniform"}
START = {"batch_size": 1, "learning_rate": 0.005, "budget": 10, "updates": 1, "memory_size": 1000}
SETTINGS: list[dict[str, Any]] = [
    *({"batch_size": size, **retrieval} for size in (1, 2, 10) for retrieval in (MIR, UNIFORM)),
    *({"learning_rate": rate, **retrieval} for rate in (0.002, 0.01) for retrieval in (MIR, UNIFORM)),
    *({"budget": budget, **UNIFORM} for budget in (5, 20, 40)),
    *({"updates": updates, **UNIFORM} for updates in (2, 3)),
    *({"memory_size": size, **UNIFORM} for size in (100, 300)),
    {"hidden": (50, 50), **UNIFORM},
]


def progressive(samples: Samples, model: Any) -> tuple[float, float]:
    """Return progressive accuracy in per cent, and microseconds per sample."""
    accuracy, count, start = metrics.Accuracy(), 0, time.process_time()
    for x, y in samples:
        guess = model.predict_one(x)
        if guess is not None:
            accuracy.update(y, guess)
        model.learn_one(x, y)
        count += 1
    return 100 * accuracy.get(), 1e6 * (time.process_time() - start) / count


def row(name: str, found: list[tuple[float, float]]) -> None:
    """Print a row: the accuracy on each stream, their mean, and the median time."""
    accuracies, times = zip(*found, strict=True)
    cells = [*(f"{value:.1f}" for value in accuracies), f"**{statistics.mean(accuracies):.1f}**"]
    print(f"| {name} | {' | '.join(cells)} | {statistics.median(times):.0f} |", flush=True)


def heading(names: Iterable[str]) -> None:
    """Print the head of a table."""
    columns = ["", *names, "mean", "µs"]
    print(f"| {' | '.join(columns)} |\n|---{'|--:' * (len(columns) - 1)}|", flush=True)


def choose(samples: int, seeds: int, settings: list[dict[str, Any]]) -> None:
    """Compare settings on synthetic streams."""
    heading(SYNTHETIC)
    for chosen in settings:
        found = []
        for make in SYNTHETIC.values():
            runs = [
                progressive(islice(make(seed), samples), RehearsalClassifier(**(START | chosen), seed=seed))
                for seed in range(seeds)
            ]
            found.append((statistics.mean(a for a, _ in runs), statistics.mean(t for _, t in runs)))
        row(", ".join(f"{name} {value}" for name, value in chosen.items()), found)


def compare(samples: int | None, seeds: int) -> None:
    """Compare the defaults with ARF; the mean over the seeds."""
    heading(REAL)
    models: dict[str, Callable[[int], Any]] = {
        "ARFClassifier": lambda seed: forest.ARFClassifier(seed=seed),
        "RehearsalClassifier": lambda seed: RehearsalClassifier(seed=seed),
    }
    for name, model in models.items():
        runs = [[progressive(islice(make(), samples), model(seed)) for seed in range(seeds)] for make in REAL.values()]
        row(name, [tuple(map(statistics.mean, zip(*of, strict=True))) for of in runs])  # type: ignore[misc]


def ordered_river(train: list[Any], test: list[Any], seed: int, inside: bool) -> float:
    """Return the accuracy of the river adapter."""
    model = RehearsalClassifier(seed=seed) if inside else RehearsalClassifier(seed=seed, scale=False)
    pipeline = model if inside else preprocessing.StandardScaler() | model
    for x, y in train:
        pipeline.learn_one(x, y)
    return statistics.mean(pipeline.predict_one(x) == y for x, y in test)


def ordered_sklearn(train: list[Any], test: list[Any], seed: int, inside: bool) -> float:
    """Return the accuracy of the scikit-learn adapter, after one `partial_fit` for each class."""
    (X, y), (X_test, y_test) = (
        (np.array([list(x.values()) for x, _ in rows]), np.array([label for _, label in rows]))
        for rows in (train, test)
    )
    scaler, model = StandardScaler(), SklearnClassifier(random_state=seed, scale=inside)
    for label in dict.fromkeys(y.tolist()):
        part = X[y == label]
        model.partial_fit(part if inside else scaler.partial_fit(part).transform(part), y[y == label])
    return model.score(X_test if inside else scaler.transform(X_test), y_test)


def ordered(samples: int | None, seeds: int) -> None:
    """Learn ImageSegments class by class, in another order of the classes for each seed."""
    data = list(islice(datasets.ImageSegments(), samples))
    print("| accuracy in per cent | mean | each seed |\n|---|--:|---|", flush=True)
    for name, learn in (("river", ordered_river), ("scikit-learn", ordered_sklearn)):
        for inside in (True, False):
            found = []
            for seed in range(seeds):
                generator = np.random.default_rng(seed)
                mixed = [data[at] for at in generator.permutation(len(data))]
                train, test = mixed[: len(data) * 7 // 10], mixed[len(data) * 7 // 10 :]
                labels = generator.permutation(sorted({y for _, y in data})).tolist()
                train.sort(key=lambda row: labels.index(row[1]))
                found.append(100 * learn(train, test, seed, inside))
            what = "defaults" if inside else "a running scaler in front"
            print(f"| {name}, {what} | {statistics.mean(found):.1f} | {', '.join(f'{one:.1f}' for one in found)} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choose", "compare", "ordered"))
    parser.add_argument("--samples", type=int, default=None, help="of each stream: 1500 synthetic ones, all real ones")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a few samples and settings, to see that it works")
    given = parser.parse_args()
    torch.set_num_threads(1)
    samples = 30 if given.quick else given.samples
    if given.what == "choose":
        choose(samples or 1500, given.seeds, SETTINGS[:1] if given.quick else SETTINGS)
    else:
        {"compare": compare, "ordered": ordered}[given.what](samples, given.seeds)


if __name__ == "__main__":
    main()
