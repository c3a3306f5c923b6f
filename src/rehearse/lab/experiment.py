"""One run: spec -> stream and learner -> result.

A run that writes into a folder leaves there its spec, its metrics as they come (JSON lines), the accuracy matrix,
what software and machine made it, and a checkpoint from which it goes on, bit for bit, after a crash.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import metrics
from ..batch import Batch
from ..errors import CheckpointError, InvalidInput
from ..learners import Learner, Step
from ..nets import make_network
from ..precision import resolve_precision, supports_bfloat16
from .environment import environment, peak_memory
from .methods import Problem, build, find_method, precision_of, preparation_key, prepare_for
from .predictors import alternative_predictors, own_metrics
from .preparations import Cost, Preparation
from .run_folder import RunLog, plain, take_up
from .spec import Spec
from .streams import Stream, make_stream


@dataclass(frozen=True)
class Progress:
    """Where a run stands: what the command line draws."""

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
    """Raised by an ``on_progress`` that wants the run to stop: it is checkpointed where it stands."""


@dataclass(frozen=True)
class Settings:
    """How a run is carried out; none of it changes a number."""

    data_dir: str | None = None
    device: str = "cpu"
    checkpoint_seconds: float = 30.0
    checkpoint_steps: int | None = None
    trace: bool = False
    seen_only: bool = False
    """After each task evaluate the tasks so far alone: no metric reads the accuracy on those to come."""
    preparations: Path | None = None
    """Where runs leave what they prepare before a task, for others that would prepare the same."""
    on_task_end: Callable[[Run, Batch, Step, Path], None] | None = None
    """Called with the run's folder after each task; it may look, and must change nothing. A function of a module, so
    that it reaches the processes of a campaign."""


def spec_stream(spec: Spec, data_dir: str | None = None) -> Stream:
    """The stream of a spec, shuffled for the methods that are upper bounds."""
    stream = make_stream(
        spec.stream,
        seed=spec.seed,
        split_seed=spec.split_seed,
        samples_per_task=spec.samples_per_task,
        n_tasks=spec.tasks,
        batch_size=spec.batch_size,
        class_order=spec.class_order,
        data_dir=data_dir,
    )
    epochs = find_method(spec.method).iid_epochs
    return stream.iid(epochs) if epochs else stream


def spec_problem(spec: Spec, stream: Stream, device: str = "cpu") -> Problem:
    if stream.n_classes is None or stream.input_shape is None:
        raise InvalidInput(f"{stream.name} does not say how many classes or what inputs it has")
    classes, shape = stream.n_classes, stream.input_shape
    check_device(device)
    return Problem(
        classes=classes,
        tasks=stream.n_tasks,
        input_shape=shape,
        prepare=prepare_for(stream.scaling),
        network=lambda: make_network(spec.network, classes=classes, input_shape=shape),
        device=torch.device(device),
    )


def check_device(device: str) -> None:
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise InvalidInput(f"there is no device {device!r}; cpu is one, and cuda where there is a GPU") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("torch finds no GPU here; use --device cpu")


def check(specs: Sequence[Spec], settings: Settings) -> None:
    """Refuse runs on one stream that cannot be built, before any of them is started."""
    stream = spec_stream(specs[0], settings.data_dir)
    for spec in specs:
        learner = build(with_precision(spec, settings.device), spec_problem(spec, stream, settings.device))
        if spec.task_free and learner.task_aware:
            raise InvalidInput(f"{spec.method} needs tasks; it cannot run task-free")


def with_precision(spec: Spec, device: str = "cpu") -> Spec:
    """The spec with ``auto`` replaced by what this processor resolves it to, before the first step."""
    check_device(device)
    searches = "search_steps" in spec.options and spec.network == "gated"  # the paper's generative runs
    precision = _resolved_precision(spec.network, spec.precision, device, searches)
    resolved = dataclasses.replace(spec, precision=precision)
    return dataclasses.replace(resolved, precision=precision_of(resolved)) if spec.precision == "auto" else resolved


@cache
def _resolved_precision(network: str, precision: str, device: str, searches: bool) -> str:
    if precision == "auto" and searches and supports_bfloat16(torch.device(device)):
        return "bfloat16-scoring"  # measured for that network, so this is no rule of the library
    model = make_network(network, classes=10, input_shape=(3, 32, 32))
    return resolve_precision(precision, model, torch.device(device)).name


class Run:
    """A run in progress: the learner, its place in the stream, and what has been measured so far."""

    def __init__(self, spec: Spec, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.spec = spec = with_precision(spec, self.settings.device)
        self.stream = spec_stream(spec, self.settings.data_dir)
        self.learner: Learner = build(spec, spec_problem(spec, self.stream, self.settings.device))
        if spec.task_free and self.learner.task_aware:
            raise InvalidInput(f"{spec.method} needs tasks; it cannot run task-free")
        tasks = len(self.stream.evaluation["test"])
        self.position = 0
        self.begun: int | None = None
        self.matrices = {name: np.full((tasks, tasks), np.nan) for name in self.stream.evaluation}
        self.treatments = {
            treatment: {name: np.full((tasks, tasks), np.nan) for name in self.stream.evaluation}
            for treatment in alternative_predictors(self.learner)
        }
        """The matrices under the learner's other ways to predict; what no metric reads, above the diagonal, stays."""
        self.extra: list[dict[str, float]] = [{} for _ in range(tasks)]
        self.training_seconds = self.evaluation_seconds = self.cpu_seconds = self.elapsed = 0.0
        self.treatments_cpu_seconds = 0.0
        self.shared_cpu_seconds = 0.0
        """Of the processor's seconds, those that another run spent on what this one took over from it."""
        self._ticked = time.perf_counter(), time.process_time()
        self.metrics_offset = 0
        self.earlier: list[dict[str, Any]] = []
        """The other software or machines that an earlier part of the run was made with."""

    def steps(
        self, on_begin: Callable[[int, int], None] | None = None, on_wait: Callable[[], None] | None = None
    ) -> Iterator[tuple[Batch, Step, bool]]:
        """Learn from here to the end; yields each batch with its step, and whether an evaluation followed it.

        Between two yields the run may be checkpointed; so it may inside ``on_begin``, which long preparations of a
        task call as they go, and inside ``on_wait``, which is called while another run makes what this one can use.
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
                self.start_clock()  # to wait is no cost of the run
                taken = shared.take()
                if taken is None:
                    shared.keep(self._prepare(data, task, on_begin), self.spec.key)
                else:
                    self._count(*taken)
        self.begun = task

    def _prepare(self, data: Batch | None, task: int, on_begin: Callable[[int, int], None] | None) -> Cost:
        """Let the learner prepare the task; gives what that took."""
        before, started, cpu = self.training_seconds, time.perf_counter(), time.process_time()
        passed = self.learner.samples_passed

        def on_step(done: int, of: int) -> None:
            self.training_seconds = before + time.perf_counter() - started  # what is saved in the middle knows it too
            if on_begin is not None:
                on_begin(done, of)

        self.learner.begin_task(data, task, on_step)
        seconds = time.perf_counter() - started
        self.training_seconds = before + seconds
        return Cost(self.learner.samples_passed - passed, seconds, time.process_time() - cpu)

    def _count(self, cost: Cost, maker: str) -> None:
        """What a preparation took that was made in another process: of this run before it was killed, or of another."""
        self.elapsed += cost.seconds
        self.training_seconds += cost.seconds
        self.cpu_seconds += cost.cpu_seconds
        if maker != self.spec.key:
            self.shared_cpu_seconds += cost.cpu_seconds

    def tick(self) -> None:
        """Count the time since the last tick."""
        now, cpu = time.perf_counter(), time.process_time()
        self.elapsed += now - self._ticked[0]
        self.cpu_seconds += cpu - self._ticked[1]
        self._ticked = now, cpu

    def start_clock(self) -> None:
        """Count from now on; what went by since the last tick is not counted."""
        self._ticked = time.perf_counter(), time.process_time()

    @property
    def _iid(self) -> bool:
        return find_method(self.spec.method).iid_epochs > 0

    def row(self, batch: Batch) -> int:
        """The row of the matrix that is written when the task of this batch ends; shuffled streams have the last."""
        return batch.task if isinstance(batch.task, int) and not self._iid else len(self.extra) - 1

    def _end(self, batch: Batch) -> None:
        started = time.perf_counter()
        if not self.spec.task_free:
            self.learner.end_task()
        self.training_seconds += time.perf_counter() - started
        started = time.perf_counter()
        row = self.row(batch)
        for name, tasks in self.stream.evaluation.items():
            for column, rows in enumerate(tasks[: row + 1] if self.settings.seen_only else tasks):
                self.matrices[name][row, column] = _accuracy(self.learner.predict, rows)
        self.extra[row] = self._extra_metrics(row)
        self.evaluation_seconds += time.perf_counter() - started
        started = time.process_time()
        for treatment, predict in alternative_predictors(self.learner).items():
            for name, tasks in self.stream.evaluation.items():
                for column, rows in enumerate(tasks[: row + 1]):
                    self.treatments[treatment][name][row, column] = _accuracy(predict, rows)
        self.treatments_cpu_seconds += time.process_time() - started

    def _extra_metrics(self, row: int) -> dict[str, float]:
        """What the method measures of itself on the test sets of the tasks seen so far, averaged over them."""
        seen = self.stream.evaluation["test"] if self._iid else self.stream.evaluation["test"][: row + 1]
        measured = [own_metrics(self.learner, rows.x) for rows in seen]
        return {name: float(np.mean([values[name] for values in measured])) for name in measured[0]}

    # ---------------------------------------------------------------------------------------------------- state

    def state(self) -> dict[str, Any]:
        return {
            "spec": self.spec.canonical,
            "position": self.position,
            "begun": self.begun,
            "learner": self.learner.state_dict(),
            "matrices": _lists(self.matrices),
            "treatments": {name: _lists(matrices) for name, matrices in self.treatments.items()},
            "extra": self.extra,
            "treatments_cpu_seconds": self.treatments_cpu_seconds,
            "shared_cpu_seconds": self.shared_cpu_seconds,
            "cost": [self.training_seconds, self.evaluation_seconds, self.cpu_seconds, self.elapsed],
            "environments": [*self.earlier, environment()],
            "seen_only": self.settings.seen_only,
        }

    def load(self, state: dict[str, Any]) -> None:
        if state.get("spec") != self.spec.canonical:
            raise CheckpointError("the checkpoint is of another run")
        self.learner.load_state_dict(state["learner"])
        # it goes on as it began
        self.settings = dataclasses.replace(self.settings, seen_only=state.get("seen_only", self.settings.seen_only))
        self.position, self.begun, self.extra = state["position"], state["begun"], state["extra"]
        self.matrices = _arrays(state["matrices"])
        self.treatments = {name: _arrays(matrices) for name, matrices in state["treatments"].items()}
        self.treatments_cpu_seconds = state["treatments_cpu_seconds"]
        self.shared_cpu_seconds = state.get("shared_cpu_seconds", 0.0)
        self.training_seconds, self.evaluation_seconds, self.cpu_seconds, self.elapsed = state["cost"]
        self.earlier = [place for place in state["environments"] if place != environment()]

    # --------------------------------------------------------------------------------------------------- result

    def result(self) -> dict[str, Any]:
        """Everything a table needs, as plain values: fractions, None for undefined."""
        sizes = [len(rows) for rows in self.stream.evaluation["test"]]
        treatments = {
            name: {"metrics": plain(_numbers(matrices, sizes)), "matrices": plain(_lists(matrices))}
            for name, matrices in self.treatments.items()
        }
        return {
            "key": self.spec.key,
            "spec": self.spec.to_dict(),
            "metrics": plain(_numbers(self.matrices, sizes) | self.extra[-1]),
            "extra": plain(self.extra),
            "matrices": plain(_lists(self.matrices)),
            **({"treatments": treatments} if treatments else {}),
            "test_sizes": sizes,
            "report": plain(self.learner.diagnostics()),
            "cost": {
                "seconds": self.elapsed,
                "cpu_seconds": self.cpu_seconds,
                "training_seconds": self.training_seconds,
                "evaluation_seconds": self.evaluation_seconds,
                **({"treatments_cpu_seconds": self.treatments_cpu_seconds} if treatments else {}),
                **({"shared_cpu_seconds": self.shared_cpu_seconds} if self.shared_cpu_seconds else {}),
                "steps": self.position,
                "steps_per_second": self.position / self.training_seconds if self.training_seconds else None,
                "forward_passes": self.learner.forward_passes,
                "peak_memory_bytes": peak_memory(),
            },
        }


def _accuracy(predict: Callable[[Any], torch.Tensor], rows: Batch) -> float:
    return (predict(rows.x).cpu() == rows.y).double().mean().item()


def _numbers(matrices: Mapping[str, metrics.Array], sizes: Sequence[int]) -> dict[str, float]:
    """The metrics of accuracy matrices by the name of their evaluation sets."""
    test = matrices["test"]
    numbers = {
        "accuracy": metrics.average_accuracy(test),
        "pooled_accuracy": metrics.pooled_accuracy(test, sizes),
        "forgetting": metrics.forgetting(test),
        "backward_transfer": metrics.backward_transfer(test),
        "learning_accuracy": metrics.learning_accuracy(test),
        "anytime_accuracy": metrics.anytime_accuracy(test),
    }
    if "validation" in matrices:
        numbers["validation_accuracy"] = metrics.average_accuracy(matrices["validation"])
    return numbers


def _lists(matrices: Mapping[str, metrics.Array]) -> dict[str, Any]:
    return {name: matrix.tolist() for name, matrix in matrices.items()}


def _arrays(lists: Mapping[str, Any]) -> dict[str, metrics.Array]:
    return {name: np.array(matrix) for name, matrix in lists.items()}


def execute(
    spec: Spec,
    folder: Path | None = None,
    settings: Settings | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Carry a run out, from its checkpoint in ``folder`` if there is one, and return its result.

    A checkpoint that is damaged or of another run is put aside, told as a note, and the run starts over.
    """
    run, log = Run(spec, settings), None
    if folder is not None:
        refused = take_up(run, folder)
        if refused is not None:
            run = Run(spec, settings)
            if on_progress is not None:
                on_progress(Progress(run.spec.key, 0, run.stream.length, None, None, note=refused))
        log = RunLog(folder, run)
    run.start_clock()

    def tell(**how: Any) -> None:
        if log is not None:
            log.checkpoint_if_due()
        if on_progress is not None:
            on_progress(Progress(run.spec.key, run.position, run.stream.length, run.begun, None, **how))

    def preparing(done: int, of: int) -> None:
        run.tick()
        tell(prepared=(done, of))

    def waiting() -> None:
        run.start_clock()
        tell(waiting=True)

    try:
        for batch, step, evaluated in run.steps(preparing, waiting):
            run.tick()
            if log is not None:
                log.step(batch, step, evaluated)
                if evaluated and run.settings.on_task_end is not None:
                    run.settings.on_task_end(run, batch, step, log.folder)
                log.checkpoint_if_due()
            if on_progress is not None:
                task = batch.task if isinstance(batch.task, int) else None
                on_progress(
                    Progress(run.spec.key, run.position, run.stream.length, task, step.incoming_loss, evaluated)
                )
    except Stopped:
        if log is not None:
            log.checkpoint()
        raise
    finally:
        if log is not None:
            log.close()
    run.tick()
    result = run.result() | {"environment": environment() | ({"earlier": run.earlier} if run.earlier else {})}
    if log is not None:
        log.finish(result)
    return result
