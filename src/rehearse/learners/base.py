"""Learner: the contract of every method, and what all of them do the same way."""

from __future__ import annotations

import contextlib
import inspect
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import call
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..batch import Batch, Progress, Step, Tree, given, kind_of, one_tensor, tree_map, tree_parts, unchanged
from ..batchnorm import BatchNormPolicy, Clean, Recalibrated
from ..checks import check, check_model, check_positive, check_switches
from ..described import Described, short
from ..diagnose import Diagnosing, Diagnosis, diagnosed, diagnosed_slots
from ..distributed import Ranks
from ..engine import Plain
from ..errors import CheckpointError, InvalidInput, RehearseError
from ..heads import MOST, Growth, find_head, growth
from ..losses import CrossEntropy, as_loss, reads_average
from ..memory import Memory
from ..memory.columns import ID, checked_samples, columns_to_store
from ..network import Network
from ..network.states import PROGRESS, load_network_state, move_network, network_state, untouched
from ..random import borrowed
from ..serving import FrozenNetwork, Predictor, Served, decided, evaluated, probabilities
from ..transforms import Augmentation
from ..undo import Commit, Operations, all_or_nothing, assign, restoring, run
from .average import Average
from .remember import batches


class Learner(Described, ABC):
    """A model that learns from a stream, one batch at a time, each batch once.

    `observe` learns, `predict` never changes anything, and `state_dict` holds everything: after `load_state_dict` the
    learner resumes bit for bit. A batch is either learned and stored, or nothing has changed, whatever interrupts it.
    All public methods may be called from any thread. The learner owns its random numbers.
    """

    task_aware: ClassVar[bool] = False
    """Whether the method needs to know the task of each batch."""

    classes_only: ClassVar[bool] = False
    """Whether it learns one class per sample, all samples alike: without weights, columns, or several targets."""

    distributable: ClassVar[bool] = False
    """Whether several processes can train one model by this method."""

    exclude_current_task: bool = True
    """Whether stored samples of the incoming batch's task are not replayed."""

    augment: Augmentation | None = None
    """What transforms samples in training."""

    ranks: Ranks | None = None
    """The processes that train the model together, of a learner built with ``distributed=True``."""

    _reporting: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    _all_or_nothing: Callable[..., contextlib.AbstractContextManager[Commit]] = staticmethod(all_or_nothing)

    def __new__(cls, *arguments: Any, distributed: bool = False, **options: Any) -> Self:
        """Refuse ``distributed=True`` of a method for which a step of several processes is not that of one."""
        check_switches(distributed=distributed)
        if distributed and not cls.distributable:
            raise InvalidInput(f"{cls.__name__} is not distributed over several processes; Replay can be")
        return super().__new__(cls)

    def __init__(
        self,
        network: Network,
        loss: Any,
        *,
        memory: Memory | None = None,
        updates: int = 1,
        batchnorm: BatchNormPolicy | None = None,
        average: float | None = None,
    ) -> None:
        """Combine the parts: a ``network`` is the model with its optimizer; for the others see `Replay`."""
        check_positive(updates=updates)
        _keep_freed_memory()
        self.network, self.loss, self.memory, self.batchnorm = network, as_loss(loss), memory, batchnorm or Clean()
        self.average = None if average is None else Average(network, average)
        if average is None and reads_average(self.loss):
            raise InvalidInput(f"{self.loss!r} learns from averaged weights; give their rate: average=0.01")
        # Averaged weights have no running statistics of their own.
        self.estimates = self.batchnorm if average is None else Recalibrated()
        self.updates = updates
        self.plain = Plain(network, self.loss, self.batchnorm)
        self.progress = Progress(kind=self.loss.kind)
        self.lock = threading.RLock()
        self.collated: Callable[..., tuple[Tree, ...]] = given
        self.filled: Callable[[Batch], Batch] = unchanged

    def _described(self, argument: inspect.Parameter) -> list[str]:
        if argument.name == "classifier":
            return [short(self.model)]
        return [] if type(getattr(self, argument.name, None)) is CrossEntropy else super()._described(argument)

    @property
    def model(self) -> nn.Module:
        """The model."""
        return self.network.model

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer; another one of the model's parameters may be assigned."""
        return self.network.optimizer

    @optimizer.setter
    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        with self.lock:
            check_model(self.model, optimizer, None, None, self.network.name)
            self.network.optimizer = optimizer

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.network.device

    @property
    def task(self) -> int | None:
        """The task of the last batch, if it was known."""
        return self.progress.task

    @property
    def samples_observed(self) -> int:
        """The number of samples that `observe` has learned from."""
        return self.progress.samples

    @property
    def samples_passed(self) -> int:
        """The number of samples passed forward so far, through all networks."""
        return sum(network.samples_passed for network in self._networks())

    @property
    def forward_passes(self) -> float:
        """Samples passed forward per sample observed: what the method costs."""
        return self.samples_passed / max(self.samples_observed, 1)

    # ------------------------------------------------------------------------------------------------------- learning

    @abstractmethod
    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None, weight: Any = None, **columns: Any) -> Step:
        """Learn from a batch of the stream.

        Args:
            x: Inputs: a tensor, or a tuple or dict of tensors.
            y: Targets, one per sample: a tensor, or a tuple or dict of tensors.
            task: The task of the batch or of each sample, if it is known.
            id: An id for each sample, by which `forget` finds it: integers or strings.
            weight: A weight for each sample, 1 by default: the mean loss of a batch is Σ w ℓ / Σ w, both when it comes
                and when its samples are replayed.
            columns: Further tensors with one entry per sample, the same ones in every batch. They are stored, and
                handed to the loss in ``batch.columns``.

        Returns:
            What the last update did.
        """

    def begin_task(self, data: Batch | None, task: int, on_step: Callable[[int, int], None] | None = None) -> None:
        """Prepare for a task; nothing by default.

        Args:
            data: All samples of the task, for methods that may look at them first.
            task: The number of the task.
            on_step: Called after each step of a long preparation with the number of steps done and of all steps.
                `state_dict` is valid inside it, and a second call of `begin_task` after loading resumes there.
        """

    def end_task(self) -> None:
        """Finish a task; called before evaluation. Nothing by default."""

    def grow(self, classes: int) -> int:
        """Give the model's last layer ``classes`` outputs in all, and return how many are new.

        What was learned stays, the optimizer's momentum included. A checkpoint of a grown learner loads into one that
        has not grown yet. Refused if the memory could not store what the loss wants stored of so many outputs.
        """
        if self.progress.kind not in (None, "classes", "tokens"):
            raise InvalidInput("only a head of classes can grow: other targets are stored as wide as they came")
        with self.lock, self._all_or_nothing(self.network) as commit:
            if self.memory is not None and isinstance(classes, int) and 0 < classes < MOST:
                logits = find_head(self.model)[1].weight.new_zeros(1, classes)
                self.memory.check_widths(columns_to_store(self.loss, logits))
            with self.network.random:
                grown = growth(self.model, self.optimizer, classes)
            if self.ranks is not None:  # new outputs are drawn
                self.ranks.make_same({"numbers of classes": classes}, grown.values.values())
            commit(grown.operations, self._grow_with(grown))
        return grown.added

    def _grow_with(self, grown: Growth) -> Operations:
        """Return what else has to be done when the head grows."""
        return () if self.average is None else self.average.grow(grown)

    def remember(self, data: Iterable[Any], limit: int | None = None) -> int:
        """Store samples that the model already knows, without training on them.

        Args:
            data: Yields ``(x, y)``, ``(x, y, task)`` or a `Batch` (with columns such as ``id``).
            limit: The largest number of samples to take.

        Returns:
            The number of samples.

        Raises:
            InvalidInput: If a batch could not be replayed later; those before it remain stored.
        """
        if self.memory is None:
            raise InvalidInput(f"{type(self).__name__} has no memory; there is nothing to fill")
        count = 0
        for batch in batches(data, limit, self.collated):
            with self._read_only():
                self._store_known(batch)
            count += len(batch)
        return count

    def _store_known(self, known: Batch) -> None:
        """Store samples with what the loss wants stored of them; refuse those that could not be replayed."""
        assert self.memory is not None
        columns = columns_to_store(self.loss, self._known_logits(known))
        wanted = {name: values for name, values in columns.items() if name not in known.columns}
        progress = self.progress._replace(kind=kind_of(known.y, kind=self.progress.kind))
        with all_or_nothing(self.memory) as commit:
            self.memory.keep(known, self.memory.check(known, **wanted))
            commit(assign(self, progress=progress))

    def _known_logits(self, known: Batch) -> Tree:
        """Return the logits of samples to store, with the model's own statistics: the memory's move as it is filled."""
        with self._read_only(), borrowed(self.network.random):
            logits = evaluated(lambda part: self._pass(part, {}), known.x)
        if not bool(self.loss(logits, known.to(self.device), False).isfinite().all()):
            raise InvalidInput("the loss of some of these samples is not finite; they cannot be replayed")
        return logits

    def forget(self, *, ids: Any = None, slots: Any = None, predicate: Callable[[Batch], Tensor] | None = None) -> int:
        """Remove samples for good from all that is stored, and return how many; see `Memory.forget`."""
        if self.memory is None:
            raise InvalidInput(f"{type(self).__name__} stores no samples; there is nothing to remove")
        with self.lock:
            return self.memory.forget(ids=ids, slots=slots, predicate=predicate)

    def _accept(self, x: Tree, y: Any, task: Any, **columns: Any) -> Batch:
        """Check a batch; changes nothing."""
        name, batch = type(self).__name__, checked_samples(x, y, task, columns, self.collated)
        if self.task_aware and task is None:
            raise InvalidInput(f"{name} needs to know the task of each batch: observe(x, y, task=...)")
        if self.classes_only and (batch.columns.keys() - {ID} or not isinstance(batch.y, Tensor)):
            raise InvalidInput(f"{name} learns one class per sample, without weights and columns; Replay can use them")
        return batch

    # ----------------------------------------------------------------------------------------------------- predicting

    def predict(self, x: Tree) -> Tree:
        """Return the most likely class of each sample in ``x`` (values for regression, booleans for several labels).

        Where classes are along the tokens of a text, or in a map, it is that of each position; of a model with several
        heads it is the prediction of each, in the structure of its outputs.
        """
        return decided(self.logits(x), self.progress.kind)

    def predict_proba(self, x: Tree) -> Tree:
        """Return the probability of each class for inputs ``x``: softmax of the logits (sigmoid for several labels)."""
        return probabilities(self.logits(x), self.progress.kind)

    def logits(self, x: Tree) -> Tree:
        """Return the model's outputs for ``x`` in eval mode. Changes nothing."""
        with self._read_only():
            return evaluated(self._evaluate, *self.collated(x))

    def predictor(self) -> Predictor:
        """Return an immutable copy of everything that prediction uses, with the same answers bit for bit.

        Threads may share it without waiting for each other or for this learner, and it never changes: make a new one
        as often as predictions should follow what is learned. It costs a copy of the model; where batch-norm
        statistics are re-estimated from the memory also that, once, so that its predictions do not pay for it; and for
        `GDumb` the training that a first prediction would wait for. Other calls of the learner wait meanwhile.

        Raises:
            InvalidInput: If the model cannot be copied.
        """
        with self._read_only():
            self.network.twin.follow()
            return Predictor(self._served(), self.progress.kind, self.collated)

    def _served(self) -> Served:
        """Return what `_evaluate` does as a module with tensors of its own."""
        return Served(FrozenNetwork(self.network, self._substitutes()))

    def _evaluate(self, x: Tree) -> Tree:
        return self._pass(x)

    def _pass(self, x: Tree, substitutes: dict[str, Tensor] | None = None) -> Tree:
        """Pass inputs in eval mode, with these tensors in place of the model's own; by default `_substitutes`."""
        network = self.network
        with network.looking("evaluation"):
            tensors = network.twin.tensors()
            return network.logits(x, tensors | (self._substitutes() if substitutes is None else substitutes))

    def _inputs(self, x: Tree) -> Tensor:
        """Return inputs as all networks of the learner take them: one tensor of real numbers."""
        if self.network.observer is not None:
            what = "learns prepared inputs, so prepare must not change: use fixed statistics"
            raise InvalidInput(f"{type(self).__name__} {what}")
        return one_tensor(self.network.ready(x) if isinstance(x, Tensor) else None, self._networks()[-1].name)

    def _substitutes(self) -> dict[str, Tensor]:
        """Return what prediction uses in place of the model's own tensors: batch-norm statistics, averaged weights."""
        averaged = {} if self.average is None else self.average.tensors
        if self.memory is None or not self.network.twin.has_batchnorm:
            return averaged
        return averaged | self.estimates.statistics(self.model, self.memory, self._move_buffers)

    def _move_buffers(self, x: Tree, buffers: dict[str, Tensor]) -> None:
        averaged = {} if self.average is None else self.average.tensors
        with self.network.looking("scoring"):
            self.network(self.network.ready(x), self.network.twin.tensors() | averaged | buffers)

    def diagnose(self, x: Tree, y: Any, task: Any = None, limit: int | None = None) -> Diagnosis:
        """Return what a step on this batch would do to the stored samples. Changes nothing.

        The step is the one that the learner's retrieval looks ahead to; for a method that looks at no step ahead it is
        the optimizer's. Samples of the batch's task are left out if replay leaves them out.

        Args:
            x: Inputs.
            y: Targets.
            task: The task of the batch, if it is known.
            limit: The largest number of stored samples to look at: a fixed draw, the same every time.
        """
        batch = checked_samples(x, y, task, {}, self.collated)
        if self.memory is None:
            raise InvalidInput(f"{type(self).__name__} has no memory; there is nothing to interfere with")
        with self._read_only(), borrowed(self.network.random):
            slots = diagnosed_slots(self.memory, batch.task if self.exclude_current_task else None, limit)
            return diagnosed(self.memory, slots, *self._diagnosing(batch))

    def _diagnosing(self, batch: Batch) -> Diagnosing:
        """Return what `diagnose` judges stored samples by: the step on this batch that it looks ahead to."""
        plain = Plain(self.network, self.loss, Clean(), self.plain.prepare)
        return plain, plain.virtual_gradient(batch), "optimizer", "all"

    def diagnostics(self) -> dict[str, Any]:
        """Return what the method has measured of itself, as plain values. Nothing by default."""
        return {}

    @contextlib.contextmanager
    def _read_only(self) -> Iterator[None]:
        """Hold the lock, and leave the counts of passed samples, torch's grad mode and the models as they are."""
        # Copies and statistics outlive the caller's inference mode; leaving it costs time only where it is on.
        kept = torch.inference_mode(False) if torch.is_inference_mode_enabled() else contextlib.nullcontext()
        with self.lock, kept:
            restores = [*map(untouched, self._networks())]
            with restoring(lambda: run(map(call, restores))):
                yield

    def _networks(self) -> list[Network]:
        return [self.network]

    # ---------------------------------------------------------------------------------------------------------- state

    def to(self, device: torch.device | str) -> Self:
        """Move model and optimizer state to a ``device``; stored samples stay, and are moved as they are replayed."""
        with self.lock, restoring(partial(self._load_own_state, self._own_state())):  # goes where the networks are
            for network in self._networks():
                move_network(network, device)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return copies of everything that decides what happens next: tensors and plain values only."""
        with self.lock:
            if self.memory is not None:
                self.memory.check_open()
            return self._present_state()

    def _present_state(self) -> dict[str, Any]:
        return {
            "learner": type(self).__name__,
            "network": network_state(self.network),
            "random": self.network.random.get(),
            "progress": tuple(self.progress),
            "batchnorm": self.batchnorm.state_dict(),
            "memory": None if self.memory is None else self.memory.present_state(),
            "own": self._own_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a ``state`` that `state_dict` returned; one that does not fit is refused and changes nothing.

        Raises:
            CheckpointError: If the state does not fit.
        """
        check(state, dict, "the state, which must be what state_dict returned,")
        if state.get("learner") != type(self).__name__:
            raise CheckpointError(f"the state is of a {state.get('learner')}, this is a {type(self).__name__}")
        with self.lock:
            before = self._present_state()
            try:
                self._load(state)
            except BaseException as problem:
                try:
                    self._load(before)
                except CheckpointError:
                    if not isinstance(problem, CheckpointError):  # no way back to before an interrupt
                        self._load(state)
                if isinstance(problem, RehearseError) or not isinstance(problem, Exception):
                    raise
                raise CheckpointError(f"the state does not fit this {type(self).__name__}: {problem}") from problem

    def _load(self, state: dict[str, Any]) -> None:
        form = dict.fromkeys(("network", "random", "batchnorm", "own"), dict) | {"learner": str, "progress": PROGRESS}
        check(state, form | {"memory": self.memory and dict}, f"the state of this {type(self).__name__}")
        load_network_state(self.network, state["network"])
        self.network.random.set(state["random"])
        self.batchnorm.load_state_dict(state["batchnorm"])
        progress = Progress(*state["progress"])
        if self.loss.kind not in (None, progress.kind) and (self.loss.kind, progress.kind) != ("classes", "tokens"):
            raise CheckpointError(f"the state is of a learner of {progress.kind}, this one learns {self.loss.kind}")
        self.progress = progress
        self._load_own_state(state["own"])
        if self.memory is not None:  # last: samples in a file may have no way back
            self.memory.load_state_dict(state["memory"], self._check_stored)

    def _check_stored(self, samples: Batch) -> None:
        """Refuse stored samples that could not be replayed: all their targets, with the outputs for the first."""
        with self._read_only(), borrowed(self.network.random):
            logits = self._pass(self._stored_inputs(samples.take(torch.arange(1))), {})
            every = tree_map(lambda leaf: leaf.expand(len(samples), *leaf.shape[1:]), logits)
            for outputs, where in tree_parts((every, torch.arange(len(samples)))):
                part = samples.take(where).to(self.device)
                for replayed in (False, True):  # the first looks at targets, the second at what is stored beside them
                    self.loss(outputs, part, replayed)

    def _stored_inputs(self, stored: Batch) -> Tree:
        return stored.x

    def _own_state(self) -> dict[str, Any]:
        """Return what this method holds beyond the parts that all have."""
        return {name: part.state_dict() for name, part in self._options().items()}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        """Load what `_own_state` returned."""
        options = self._options()
        if state.keys() != options.keys():
            raise CheckpointError("the state is of a learner with another choice of augment= or average=")
        for name, part in options.items():
            part.load_state_dict(state[name])

    def _options(self) -> dict[str, Augmentation | Average]:
        held = {"augment": self.augment, "average": self.average}
        return {name: part for name, part in held.items() if part is not None}

    def confirm(self, state: dict[str, Any]) -> None:
        """Note that this ``state`` is safely on a disk, so that no older one is needed any more (`rehearse.save`)."""
        with self.lock:
            if self.memory is not None:
                self.memory.confirm(state["memory"])

    def __getstate__(self) -> dict[str, Any]:
        """A copy has a lock of its own."""
        return {name: value for name, value in vars(self).items() if name != "lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore what `__getstate__` returned."""
        vars(self).update(state)
        self.lock = threading.RLock()


def _keep_freed_memory() -> None:
    """Let the C library keep the memory of freed activations, for the next step's.

    glibc returns large blocks to the system until it has seen one of that size freed, and every step would have its
    pages made anew: a tenth of a step. Freeing one untouched block of the largest size that glibc learns from is
    enough; elsewhere this does nothing.
    """
    torch.empty((32 << 20) - (1 << 16), dtype=torch.uint8)
