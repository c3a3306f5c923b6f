"""How to make a run again: the command line of a spec."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from ..spec import Spec

FIELDS = (
    "capacity", "lr", "criterion", "candidates", "budget", "updates", "batchnorm", "samples_per_task", "tasks",
    "batch_size", "network", "precision", "every", "step_cost",
)  # fmt: skip


def rerun_command(result: Mapping[str, Any]) -> str:
    """The command line that makes this run again."""
    spec = Spec.from_dict(result["spec"])
    words = ["rehearse", "run", spec.method, "--stream", spec.stream, "--seeds", "1", "--first-seed", str(spec.seed)]
    for name in FIELDS:
        value = getattr(spec, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    if spec.class_order is not None:
        words += ["--class-order", ",".join(map(str, spec.class_order))]
    words += ["--split-seed", str(spec.split_seed)] if spec.split_seed else []
    words += ["--include-current-task"] if spec.exclude_current_task is False else []
    words += ["--task-free"] if spec.task_free else []
    for name, value in spec.options.items():
        words += ["--option", f"{name}={json.dumps(value)}"]
    return shlex.join(words)
