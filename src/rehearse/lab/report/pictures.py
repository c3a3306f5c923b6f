"""Pictures of a run, drawn as it goes: at the end of each task what was recalled, what a generator imagines, and what
an autoencoder leaves of pictures.

`draw_task` is given to a run as `Settings.on_task_end`; it only looks, so that a run with pictures and one without
come to the same numbers. The files lie in ``OUT/<key>/images``, where the page finds them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...batch import Batch
from ...errors import InvalidInput, MissingExtra
from ...learners import CodeReplay, GenerativeReplay, Step
from ..experiment import Run
from ..measurements import imagine, reconstruct, retrieve
from ..methods import prepare_for
from .images import reconstructions_figure, retrieved_figure, write_grid

IMAGINED = 20
COLUMNS = 10
REPLAYED_ROWS = 3


def check_pictures() -> None:
    """Refuse pictures before anything is run where they cannot be drawn."""
    if importlib.util.find_spec("PIL") is None:
        raise MissingExtra("Pillow", "lab")


def draw_task(run: Run, batch: Batch, step: Step, folder: Path) -> None:
    """The pictures of the task that ends with this batch."""
    value_range, name, images = _value_range(run), _name(batch), folder / "images"
    learner = run.learner
    if isinstance(learner, GenerativeReplay):
        samples = imagine(learner, IMAGINED)
        rows = [("imagined", samples[start : start + COLUMNS]) for start in range(0, IMAGINED, COLUMNS)]
        write_grid(rows, images / f"{name}-imagined.png", value_range=value_range)
        retrieved = retrieve(learner, batch.x, batch.y)
        if retrieved.classifier is not None:
            retrieved_figure(retrieved, images / f"{name}-retrieved.png", value_range=value_range)
        _draw_reconstructions(run, batch, partial(reconstruct, learner), images / f"{name}-reconstructed.png")
        return
    if isinstance(learner, CodeReplay):
        _draw_reconstructions(run, batch, learner.rebuild, images / f"{name}-reconstructed.png")
    if step.replayed is not None:
        prepare = prepare_for(run.stream.scaling)
        replayed = _tensor(prepare(step.replayed.x))[: REPLAYED_ROWS * COLUMNS]
        parts = [("incoming", _tensor(prepare(batch.x)))]
        parts += [("replayed", part) for part in torch.split(replayed, COLUMNS)]
        write_grid(parts, images / f"{name}-replayed.png", value_range=value_range)


def _draw_reconstructions(run: Run, batch: Batch, rebuilt: Callable[[Tensor], Tensor], path: Path) -> None:
    """Test inputs of the tasks seen so far, and under each what is left of it."""
    tests = run.stream.evaluation["test"][: batch.task + 1 if isinstance(batch.task, int) else None]
    x = torch.cat([_tensor(rows.x[:COLUMNS]) for rows in tests])
    seen = _tensor(prepare_for(run.stream.scaling)(x))
    reconstructions_figure(seen, rebuilt(x), path, columns=COLUMNS, value_range=_value_range(run))


def draw_figures(run: Run, batch: Batch, step: Step, folder: Path) -> None:
    """The same, and Figure 2 of the paper: what was retrieved for the classifier alone."""
    draw_task(run, batch, step, folder)
    retrieved = retrieve(run.learner, batch.x, batch.y) if isinstance(run.learner, GenerativeReplay) else None
    if retrieved is not None and retrieved.classifier is not None:
        path = folder / "images" / f"{_name(batch)}-retrieved-for-classifier.png"
        retrieved_figure(retrieved._replace(generator=None), path, value_range=_value_range(run))


def _value_range(run: Run) -> tuple[float, float]:
    return (-1.0, 1.0) if run.stream.scaling == "symmetric" else (0.0, 1.0)


def _name(batch: Batch) -> str:
    return f"task-{batch.task + 1:02d}" if isinstance(batch.task, int) else "end"


def _tensor(x: object) -> Tensor:
    if not isinstance(x, Tensor):
        raise InvalidInput("inputs of several parts are no pictures; run without images")
    return x
