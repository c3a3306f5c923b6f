"""Results of runs that were never made, for tests of what is told about results."""

from __future__ import annotations

from typing import Any

from rehearse.lab.spec import Spec


def made_result(
    spec: Spec, accuracy: float = 0.8, forgetting: float | None = 0.1, **metrics: float | None
) -> dict[str, Any]:
    """What a run of this spec would leave, with these numbers: every task ends at the accuracy, and stood higher by
    what was forgotten from when it was learned until the last one came; None is what nobody knows."""
    tasks = 10 if spec.stream == "permuted-mnist" else 5
    best = None if forgetting is None else accuracy + forgetting
    matrix = [[best if task <= after else None for task in range(tasks)] for after in range(tasks - 1)]
    matrix.append([accuracy] * tasks)
    return {
        "key": spec.key,
        "spec": spec.to_dict(),
        "metrics": {"accuracy": accuracy, "forgetting": forgetting, "pooled_accuracy": accuracy, **metrics},
        "extra": [{} for _ in range(tasks)],
        "matrices": {"test": matrix},
        "test_sizes": [100] * tasks,
        "report": {},
        "cost": {
            "seconds": 12.0,
            "cpu_seconds": 10.0,
            "training_seconds": 9.0,
            "evaluation_seconds": 1.0,
            "steps": 500,
            "steps_per_second": 55.0,
            "forward_passes": 3.0,
            "peak_memory_bytes": 1000,
        },
        "environment": {"torch": "2.13", "processor": "one", "processor_model": "first", "cpu_capability": "some"},
    }
