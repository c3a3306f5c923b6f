"""Pictures of a run, drawn as it goes: at the end of each task what was recalled, what a generator imagines, and what
an autoencoder leaves of pictures.

`draw_task` is given to a run as `Settings.on_task_end`; it only looks, so that a run with pictures and one without
come to the same numbers. The files lie in ``OUT/<key>/images``, where the page finds them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from torch import Tensor

from ..batch import Batch
from ..errors import InvalidInput, MissingExtra
from ..experiment import Run
from ..learners import Step
from ..learners.generative import GenerativeReplay
from ..learners.hybrid import AutoencoderReplay
from ..methods import prepare_for
from .images import reconstructions_figure, retrieved_figure, write_grid

IMAGINED = 20
COLUMNS = 10
RECALLED_ROWS = 3


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
        return
    if isinstance(learner, AutoencoderReplay):
        tests = run.stream.evaluation["test"][: batch.task + 1 if isinstance(batch.task, int) else None]
        x = torch.cat([_tensor(rows.x[:COLUMNS]) for rows in tests])
        seen, path = _tensor(prepare_for(run.stream.scaling)(x)), images / f"{name}-reconstructed.png"
        reconstructions_figure(seen, learner.rebuild(x), path, columns=COLUMNS, value_range=value_range)
    if step.recalled is not None:
        prepare = prepare_for(run.stream.scaling)
        recalled = _tensor(prepare(step.recalled.x))[: RECALLED_ROWS * COLUMNS]
        parts = [("incoming", _tensor(prepare(batch.x)))]
        parts += [("recalled", part) for part in torch.split(recalled, COLUMNS)]
        write_grid(parts, images / f"{name}-recalled.png", value_range=value_range)


def _tensor(x: object) -> Tensor:
    if not isinstance(x, Tensor):
        raise InvalidInput("inputs of several parts are no pictures; run without images")
    return x
