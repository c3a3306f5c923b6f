"""One run: from a spec to a result.

A run that writes into a folder leaves its spec there, its metrics as they come (JSON lines), the accuracy matrix, the
software and machine, and a checkpoint from which it resumes bit for bit after a crash.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..batch import Batch
from ..errors import CheckpointError
from ..learners import Step
from ..metrics import Array
from .environment import environment, peak_memory
from .limits import check_plain, enough_memory
from .matrices import Matrices, accuracy_metrics, as_arrays, as_lists
from .methods import find_method, preparation_key
from .predictors import alternative_predictors, own_metrics
from .preparations import Cost, Preparation
from .run_folder import RunLog, plain, resume
from .setup import spec_learner, spec_stream, with_precision
from .spec import Spec
from .stored_inputs import with_inputs, without_inputs
from .within import check_within, over_time

Predict = Callable[[Any], torch.Tensor]
COSTS = tuple(
    f"{name}_seconds"
    for name in ("total", "cpu", "training", "evaluation", "alternatives_cpu", "within_cpu", "shared_cpu")
)


@dataclass(frozen=True)
class Progress:
    """Where a run is: what the command line draws."""

    key: str
    step: int
    steps: int | None
    task: int | None
    loss: float | None
    evaluated: bool = False
    note: str | None = None
    prepared: tuple[int, int] | None = None
    """Before the first step of a task: how many steps of its preparation are done, of how many."""
    waiting: bool = False
    """Whether another run is preparing what this one can use."""


class Stopped(Exception):
    """Raised by an ``on_progress`` to stop the run: it is checkpointed where it is."""


@dataclass(frozen=True)
class Settings:
    """How a run is made; none of it changes a number."""

    data_dir: str | None = None
    device: str = "cpu"
    checkpoint_seconds: float = 30.0
    checkpoint_steps: int | None = None
    trace: bool = False
    preparations: Path | None = None
    """Where runs leave what they prepare before a task, for others that would prepare the same."""
    on_task_end: Callable[[Run, Batch, Step, Path], None] | None = None
    """Called with the run's folder after each task; it may look, and must change nothing. A function of a module, so
    that it reaches the processes of a campaign."""


class Run:
    """A run in progress: the learner, its place in the stream, and what has been measured so far."""

    def __init__(self, spec: Spec, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.spec = spec = with_precision(spec, self.settings.device)
        self.stream = spec_stream(spec, self.settings.data_dir)
        self.learner = spec_learner(spec, self.stream, self.settings.device)
        tasks = len(self.stream.evaluation["test"])
        self.position = 0
        self.begun: int | None = None
        self.matrices = self._undefined(tasks)
        """Accuracies after each task, undefined above the diagonal: on tasks to come, which no metric reads."""
        self.alternatives = {name: self._undefined(tasks) for name in alternative_predictors(self.learner)}
        """The matrices of the alternative predictors."""
        self.extra: list[dict[str, float]] = [{} for _ in range(tasks)]
        self.training_seconds = self.evaluation_seconds = self.cpu_seconds = self.total_seconds = 0.0
        self.within: list[dict[str, Any]] = []
        """The test accuracies at the end of each task and, with ``every``, within tasks: step, task, one per task."""
        self.alternatives_cpu_seconds = self.within_cpu_seconds = 0.0
        self.shared_cpu_seconds = 0.0
        """Of the CPU seconds, those that another run spent on what this one took over from it."""
        self._ticked = time.perf_counter(), time.process_time()
        self.metrics_offset = 0
        self.earlier: list[dict[str, Any]] = []
        """The other software or machines that made an earlier part of the run."""

    def _undefined(self, tasks: int) -> Matrices:
        return {name: np.full((tasks, tasks), np.nan) for name in self.stream.evaluation}

    def steps(
        self, on_begin: Callable[[int, int], None] | None = None, on_wait: Callable[[], None] | None = None
    ) -> Iterator[tuple[Batch, Step, bool]]:
        """Learn from here to the end; yields each batch with its step, and whether an evaluation followed it.

        The run may be checkpointed between two yields, inside ``on_begin``, which long preparations of a task call as
        they go, and inside ``on_wait``, which is called while another run makes what this one can use.
        """
        batches = self.stream.batches(start=self.position)
        batch = next(batches, None)
        while batch is not None:
            following = next(batches, None)
            self._begin(batch, on_begin, on_wait)
            started = time.perf_counter()
            step = self.learner.observe(batch.x, batch.y, None if self.spec.task_free else batch.task)
            self.training_seconds += time.perf_counter() - started
            self.position += 1
            ends = following is None or following.task != batch.task
            if ends:
                self._end(batch)
            elif self.spec.every is not None and self.position % self.spec.every == 0:
                self._look(batch)
            yield batch, step, ends
            batch = following

    def _begin(
        self, batch: Batch, on_begin: Callable[[int, int], None] | None, on_wait: Callable[[], None] | None
    ) -> None:
        task = batch.task
        if self.spec.task_free or not isinstance(task, int) or task == self.begun or self._iid:
            return
        data, key, shared = self.stream.task_data(task), preparation_key(self.spec), None
        if self.settings.preparations is not None and key is not None:
            shared = Preparation.of(self.learner, data, task, self.settings.preparations / key)
        if shared is None:
            self._prepare(data, task, on_begin)
        else:
            self.tick()
            with shared.alone(on_wait):
                self.start_clock()  # waiting is no cost of the run
                taken = shared.take()
                if taken is None:
                    shared.keep(self._prepare(data, task, on_begin), self.spec.key)
                else:
                    self._count(*taken)
        self.begun = task

    def _prepare(self, data: Batch | None, task: int, on_begin: Callable[[int, int], None] | None) -> Cost:
        """Let the learner prepare the task; returns what that took."""
        before, started, cpu = self.training_seconds, time.perf_counter(), time.process_time()
        passed = self.learner.samples_passed

        def on_step(done: int, of: int) -> None:
            self.training_seconds = before + time.perf_counter() - started  # also in a checkpoint in the middle
            if on_begin is not None:
                on_begin(done, of)

        self.learner.begin_task(data, task, on_step)
        seconds = time.perf_counter() - started
        self.training_seconds = before + seconds
        return Cost(self.learner.samples_passed - passed, seconds, time.process_time() - cpu)

    def _count(self, cost: Cost, maker: str) -> None:
        """Count a preparation made in another process: by this run before it was killed, or by another run."""
        self.total_seconds += cost.seconds
        self.training_seconds += cost.seconds
        self.cpu_seconds += cost.cpu_seconds
        if maker != self.spec.key:
            self.shared_cpu_seconds += cost.cpu_seconds

    def tick(self) -> None:
        """Count the time since the last tick."""
        now, cpu = time.perf_counter(), time.process_time()
        self.total_seconds += now - self._ticked[0]
        self.cpu_seconds += cpu - self._ticked[1]
        self._ticked = now, cpu

    def start_clock(self) -> None:
        """Count from now on; the time since the last tick is not counted."""
        self._ticked = time.perf_counter(), time.process_time()

    @property
    def _iid(self) -> bool:
        return find_method(self.spec.method).iid_epochs > 0

    def row(self, batch: Batch) -> int:
        """Return the row of the matrix that is written when the task of this batch ends; the last if shuffled."""
        return batch.task if isinstance(batch.task, int) and not self._iid else len(self.extra) - 1

    def _end(self, batch: Batch) -> None:
        started = time.perf_counter()
        if not self.spec.task_free:
            self.learner.end_task()
        self.training_seconds += time.perf_counter() - started
        started = time.perf_counter()
        row = self.row(batch)
        self._evaluate(self.learner.predict, self.matrices, row)
        self.extra[row] = self._extra_metrics(row)
        if self.spec.every is not None:
            self._note(row, self.matrices["test"][row])
        self.evaluation_seconds += time.perf_counter() - started
        started = time.process_time()
        for name, predict in alternative_predictors(self.learner).items():
            if predict == self.learner.predict:  # evaluated above
                for part, matrix in self.matrices.items():
                    self.alternatives[name][part][row] = matrix[row]
            else:
                self._evaluate(predict, self.alternatives[name], row)
        self.alternatives_cpu_seconds += time.process_time() - started

    def _look(self, batch: Batch) -> None:
        """Evaluate within a task, on the test sets of the tasks seen so far."""
        started, cpu, row = time.perf_counter(), time.process_time(), self.row(batch)
        found = {"test": np.full_like(self.matrices["test"], np.nan)}
        self._evaluate(self.learner.predict, found, row)
        self._note(row, found["test"][row])
        self.evaluation_seconds += time.perf_counter() - started
        self.within_cpu_seconds += time.process_time() - cpu

    def _note(self, row: int, accuracies: Array) -> None:
        self.within.append({"step": self.position, "task": row, "test": plain(accuracies.tolist())})

    def _evaluate(self, predict: Predict, into: Matrices, row: int) -> None:
        for name, matrix in into.items():
            for column, test in enumerate(self.stream.evaluation[name][: row + 1]):
                matrix[row, column] = (predict(test.x).cpu() == test.y).double().mean().item()

    def _extra_metrics(self, row: int) -> dict[str, float]:
        """Return what the method measures of itself on the test sets of the tasks seen so far, averaged."""
        measured = [own_metrics(self.learner, test.x) for test in self.stream.evaluation["test"][: row + 1]]
        return {name: float(np.mean([values[name] for values in measured])) for name in measured[0]}

    # ---------------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        """Return everything that a checkpoint needs."""
        return {
            "spec": self.spec.canonical,
            "position": self.position,
            "begun": self.begun,
            "learner": without_inputs(self.learner.state_dict(), self.learner),
            "matrices": as_lists(self.matrices),
            "alternatives": {name: as_lists(matrices) for name, matrices in self.alternatives.items()},
            "extra": self.extra,
            "within": self.within,
            "cost": [getattr(self, name) for name in COSTS],
            "environments": [*self.earlier, environment()],
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        if state.get("spec") != self.spec.canonical:
            raise CheckpointError("the checkpoint is of another run")
        matrices = as_arrays(state["matrices"], self.matrices)
        alternatives = {name: as_arrays(state["alternatives"][name], own) for name, own in self.alternatives.items()}
        position, begun, extra, places = (state[name] for name in ("position", "begun", "extra", "environments"))
        floats = [*state["cost"], *(value for table in extra for value in table.values())]
        check_plain([position, begun, state["within"], state["cost"], places])
        if {type(position), type(begun or 0)} != {int} or {type(value) for value in floats} != {float} or position < 0:
            raise CheckpointError("its place in the stream, its cost, or what was measured is no such number")
        check_within(state["within"], self.spec, len(self.extra))
        if state["learner"].get("left_out", {"rows": 0})["rows"] > (self.spec.capacity or 0):
            raise CheckpointError("its memory holds more samples than that of this run")
        self.learner.load_state_dict(with_inputs(state["learner"], self.stream))
        self.position, self.begun, self.extra, self.within = position, begun, extra, state["within"]
        self.matrices, self.alternatives = matrices, alternatives
        for name, seconds in zip(COSTS, state["cost"], strict=True):
            setattr(self, name, seconds)
        self.earlier = [place for place in state["environments"] if place != environment()]

    # --------------------------------------------------------------------------------------------------- result

    def result(self) -> dict[str, Any]:
        """Return everything that a table needs, as plain values: fractions, None for undefined."""
        sizes = [len(test) for test in self.stream.evaluation["test"]]
        alternatives = {
            name: {"metrics": plain(accuracy_metrics(matrices, sizes)), "matrices": plain(as_lists(matrices))}
            for name, matrices in self.alternatives.items()
        }
        return {
            "key": self.spec.key,
            "spec": self.spec.to_dict(),
            "metrics": plain(accuracy_metrics(self.matrices, sizes) | over_time(self.within) | self.extra[-1]),
            "extra": plain(self.extra),
            "matrices": plain(as_lists(self.matrices)),
            **({"treatments": alternatives} if alternatives else {}),
            **({"within": self.within} if self.within else {}),
            "test_sizes": sizes,
            "report": plain(self.learner.diagnostics()),
            "cost": {
                "seconds": self.total_seconds,
                "cpu_seconds": self.cpu_seconds,
                "training_seconds": self.training_seconds,
                "evaluation_seconds": self.evaluation_seconds,
                **({"treatments_cpu_seconds": self.alternatives_cpu_seconds} if alternatives else {}),
                **({"within_cpu_seconds": self.within_cpu_seconds} if self.within else {}),
                **({"shared_cpu_seconds": self.shared_cpu_seconds} if self.shared_cpu_seconds else {}),
                "steps": self.position,
                "steps_per_second": self.position / self.training_seconds if self.training_seconds else None,
                "forward_passes": self.learner.forward_passes,
                "peak_memory_bytes": peak_memory(),
            },
        }


@enough_memory()
def execute(
    spec: Spec,
    folder: Path | None = None,
    settings: Settings | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Make a run, from its checkpoint in ``folder`` if there is one, and return its result.

    A checkpoint that is damaged, of another version or of another run is set aside with a note, and the run starts
    over.
    """
    run, log = Run(spec, settings), None

    def report(task: int | None = None, loss: float | None = None, **how: Any) -> None:
        if log is not None:
            log.checkpoint_if_due()
        if on_progress is not None:
            on_progress(Progress(run.spec.key, run.position, run.stream.length, task, loss, **how))

    def preparing(done: int, of: int) -> None:
        run.tick()
        report(run.begun, prepared=(done, of))

    def waiting() -> None:
        run.start_clock()
        report(run.begun, waiting=True)

    if folder is not None:
        refused = resume(run, folder)
        if refused is not None:
            run = Run(spec, settings)
            report(note=refused)
        log = RunLog(folder, run)
    run.start_clock()
    try:
        for batch, step, evaluated in run.steps(preparing, waiting):
            run.tick()
            if log is not None:
                log.step(batch, step, evaluated)
                if evaluated and run.settings.on_task_end is not None:
                    run.settings.on_task_end(run, batch, step, log.folder)
            report(batch.task if isinstance(batch.task, int) else None, step.incoming_loss, evaluated=evaluated)
    except Stopped:
        if log is not None:
            log.checkpoint()
        raise
    finally:
        if log is not None:
            log.flush()
    run.tick()
    result = run.result() | {"environment": environment() | ({"earlier": run.earlier} if run.earlier else {})}
    if log is not None:
        log.finish(result)
    return result
