"""Pictures of a run, drawn as it goes: at the end of each task what was recalled, and what a generator imagines.

`draw_task` is given to a run as `Settings.on_task_end`; it only looks, so that a run with pictures and one without
come to the same numbers. The files lie in ``OUT/<key>/images``, where the page finds them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from torch import Tensor

from ..batch import Batch
from ..errors import InvalidInput, MissingExtra
from ..experiment import Run
from ..learners import Step
from ..learners.generative import GenerativeReplay
from ..methods import prepare_for
from .images import retrieved_figure, write_grid

IMAGINED = 20
COLUMNS = 10


def check_pictures() -> None:
    """Refuse pictures before anything is run where they cannot be drawn."""
    if importlib.util.find_spec("PIL") is None:
        raise MissingExtra("Pillow", "images")


def draw_task(run: Run, batch: Batch, step: Step, folder: Path) -> None:
    """The pictures of the task that ends with this batch."""
    value_range = (-1.0, 1.0) if run.stream.scaling == "symmetric" else (0.0, 1.0)
    name = f"task-{batch.task + 1:02d}" if isinstance(batch.task, int) else "end"
    images = folder / "images"
    learner = run.learner
    if isinstance(learner, GenerativeReplay):
        samples = learner.imagine(IMAGINED)
        rows = [("imagined", samples[start : start + COLUMNS]) for start in range(0, IMAGINED, COLUMNS)]
        write_grid(rows, images / f"{name}-imagined.png", value_range=value_range)
        if learner.last_retrieved is not None and learner.last_retrieved.classifier is not None:
            retrieved_figure(learner.last_retrieved, images / f"{name}-retrieved.png", value_range=value_range)
    elif step.recalled is not None:
        prepare = prepare_for(run.stream.scaling)
        parts = {"incoming": prepare(batch.x), "recalled": prepare(step.recalled.x)}
        write_grid(
            [(said, _tensor(x)) for said, x in parts.items()], images / f"{name}-recalled.png", value_range=value_range
        )


def _tensor(x: object) -> Tensor:
    if not isinstance(x, Tensor):
        raise InvalidInput("inputs of several parts are no pictures; run without images")
    return x
