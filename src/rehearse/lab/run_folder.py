"""The folder of a run: its spec, its metrics as they come, the accuracy matrix, and a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..batch import Batch
from ..checkpoint import read_state, write_state
from ..errors import CheckpointError
from ..files import append, make_folder, write_whole
from ..learners import Step
from .environment import environment
from .limits import LARGEST

if TYPE_CHECKING:
    from .experiment import Run

BLOCK = 8192  # bytes of metrics that reach the file together


def resume(run: Run, folder: Path) -> str | None:
    """Continue a run from its checkpoint; one that is damaged or does not fit is set aside, and the reason returned.

    A disk that cannot be read is another matter: the checkpoint may be whole, so that is an error.
    """
    path, metrics_path = folder / "checkpoint", folder / "metrics.jsonl"
    if not path.exists():
        return None
    try:
        state = read_state(path)
        run.load(state["run"])
        run.metrics_offset = int(state["metrics_offset"])
        if not metrics_path.exists() or metrics_path.stat().st_size < run.metrics_offset:
            raise CheckpointError(f"{metrics_path} is shorter than it was at the checkpoint")
    except Exception as problem:  # whatever a stranger, or another version, has left there
        if isinstance(problem, OSError) or isinstance(problem.__cause__, OSError):
            raise
        path.replace(path.with_name("checkpoint.refused"))
        return f"{path} is refused, the run starts over: {problem}"
    return None


class RunLog:
    """What a run leaves in its folder, and its checkpoint."""

    def __init__(self, folder: Path, run: Run) -> None:
        self.folder, self.run = folder, run
        make_folder(folder)
        _write_json(folder / "spec.json", run.spec.to_dict())
        _write_json(folder / "environment.json", environment())
        self._lines = b""
        self.flush()  # cuts off lines of steps after the checkpoint: they will be written again
        self._last = time.monotonic()
        self._last_position = run.position

    def step(self, batch: Batch, step: Step, evaluated: bool) -> None:
        line: dict[str, Any] = {
            "step": self.run.position,
            "task": batch.task if isinstance(batch.task, int) else None,
            "incoming_loss": step.incoming_loss,
            "replayed_loss": step.replayed_loss,
            "interference": None if step.interference is None else step.interference.mean().item(),
        }
        if self.run.settings.trace and step.replayed is not None and step.replayed.slots is not None:
            line["replayed"] = step.replayed.slots.tolist()
            line["scores"] = None if step.interference is None else step.interference.tolist()
        self._write(line)
        if self.run.within and self.run.within[-1]["step"] == self.run.position and not evaluated:
            self._write(self.run.within[-1])
        if evaluated:
            row = self.run.row(batch)
            rows = {name: matrix[row].tolist() for name, matrix in self.run.matrices.items()}
            self._write({"step": self.run.position, "evaluated_after_task": row, **rows, **self.run.extra[row]})

    def _write(self, line: dict[str, Any]) -> None:
        self._lines += json.dumps(plain(line)).encode() + b"\n"
        if len(self._lines) > BLOCK:
            self.flush()

    def checkpoint_if_due(self) -> None:
        settings = self.run.settings
        steps = settings.checkpoint_steps
        due = time.monotonic() - self._last >= settings.checkpoint_seconds
        if due or (steps is not None and self.run.position - self._last_position >= steps):
            self.checkpoint()

    def checkpoint(self) -> None:
        self.flush()
        state = self.run.state()
        whole = {"run": state, "metrics_offset": self.run.metrics_offset}
        write_state(self.folder / "checkpoint", whole, mode=0o600)  # it may hold samples
        self.run.learner.confirm(state["learner"])
        self._last, self._last_position = time.monotonic(), self.run.position

    def flush(self) -> None:
        """What was written is on the disk: a run that has its result has no checkpoint to write it again from."""
        path, offset = self.folder / "metrics.jsonl", self.run.metrics_offset
        self.run.metrics_offset, self._lines = append(path, self._lines, offset), b""

    def finish(self, result: dict[str, Any]) -> None:
        _write_json(self.folder / "accuracy.json", result["matrices"] | {"test_sizes": result["test_sizes"]})


def plain(value: Any) -> Any:
    """The value as a result can hold it: not-a-number, infinity and what is nearly that are undefined there."""
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float | np.floating):
        return float(value) if abs(float(value)) <= LARGEST else None
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _write_json(path: Path, value: Any) -> None:
    write_whole(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")
