"""Results of runs that were never made, for tests of what is told about results."""

from __future__ import annotations

from typing import Any

from rehearse.spec import Spec


def made_result(
    spec: Spec, accuracy: float = 0.8, forgetting: float | None = 0.1, **metrics: float | None
) -> dict[str, Any]:
    """What a run of this spec would leave, with these numbers; tasks are learned to 0.9 and then forgotten alike."""
    tasks = 10 if spec.stream == "permuted-mnist" else 5
    matrix = [[accuracy if task < after else 0.9 for task in range(tasks)] for after in range(tasks)]
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
        "environment": {"torch": "2.13"},
    }
