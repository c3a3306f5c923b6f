"""Result files with chosen numbers, as runs leave them."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from rehearse import metrics
from rehearse.lab.spec import Spec

TASKS = 4
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108000000003a7e9b55"
    "0000000a49444154789c63f80f0001010100b138f6140000000049454e44ae426082"
)


def matrix_of(final: float, lost: float, seed: int) -> list[list[float | None]]:
    """Tasks end at about ``final`` after losing ``lost``, moved a little by the seed."""
    shift = 0.01 * seed
    matrix: list[list[float | None]] = [[None] * TASKS for _ in range(TASKS)]
    for learned in range(TASKS):
        for tested in range(learned + 1):
            share = (learned - tested) / (TASKS - 1)
            matrix[learned][tested] = round(final + lost - lost * share - shift - 0.02 * tested, 6)
    return matrix


def result_of(spec: Spec, matrix: list[list[float | None]], seconds: float, passes: float) -> dict[str, Any]:
    numbers = np.array(matrix, dtype=float)
    accuracy, forgetting = metrics.average_accuracy(numbers), metrics.forgetting(numbers)
    return {
        "key": spec.key,
        "spec": spec.to_dict(),
        "metrics": {
            "accuracy": accuracy,
            "pooled_accuracy": accuracy,
            "forgetting": None if np.isnan(forgetting) else forgetting,
        },
        "matrices": {"test": matrix},
        "test_sizes": [100] * TASKS,
        "cost": {
            "seconds": seconds,
            "cpu_seconds": seconds,
            "steps_per_second": 100 / seconds,
            "forward_passes": passes,
        },
        "environment": {"torch": "2.13.0", "processor": "some processor"},
    }


def put(folder: Path, spec: Spec, matrix: list[list[float | None]], seconds: float = 2.0, passes: float = 1.0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{spec.key}.json"
    path.write_text(json.dumps(result_of(spec, matrix, seconds, passes)))
    return path


def some_runs(folder: Path, seeds: int = 3) -> None:
    """Three methods on one stream: one without a memory, two with one of 50 rows; the last one forgets least."""
    for seed in range(seeds):
        put(folder, Spec(method="finetune", stream="split-mnist-5k", seed=seed), matrix_of(0.3, 0.5, seed), 1.0, 1.0)
        replay = Spec(method="er", stream="split-mnist-5k", seed=seed, capacity=50)
        put(folder, replay, matrix_of(0.7, 0.2, -seed), 2.0, 2.0)
        interfered = Spec(method="er-mir", stream="split-mnist-5k", seed=seed, capacity=50, candidates=50)
        put(folder, interfered, matrix_of(0.8, 0.1, seed % 2), 5.0 + seed, 11.0)
