"""A memory of codes, the autoencoder that reads and writes them, and its training; no classifier takes part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...batch import Batch
from ...checks import check, check_literals, check_positive, count, optional
from ...errors import InvalidInput
from ...latent import check_rebuilt
from ...losses import at_least_float32
from ...memory import Memory
from ...memory.rows import check_leaf
from ...network import Network, finite
from ...network.states import load_network_state, network_state
from ...random import RandomState, borrowed, numpy_generator
from ...undo import Restore, all_or_nothing, run
from .codec import CALIBRATION_SAMPLES, Codec, encoded

Refresh = Literal["epoch", "task"]
Excluded = Tensor | int | None
Ready = Callable[[Tensor], Tensor]
OnStep = Callable[[int, int], None]
BLOCK: Final = 500  # codes updated at once
COUNTS: Final = ("seed", "steps", "begun", "prepared_task", "unprepared_batches")


@dataclass(frozen=True)
class Schedule:
    """How long the autoencoder is trained, on how many samples at a time, and when codes are updated."""

    epochs: int
    budget: int  # codes replayed in a step
    batch: int
    refresh: Refresh
    refresh_every: int

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_positive(autoencoder_epochs=self.epochs, autoencoder_budget=self.budget)
        check_positive(autoencoder_batch=self.batch, refresh_every=self.refresh_every)
        check_literals(self)

    def steps(self, samples: int) -> tuple[int, int]:
        """Return the number of steps in an epoch of so many samples, and in all epochs."""
        an_epoch = samples // min(self.batch, samples)
        return an_epoch, an_epoch * self.epochs


class CodedMemory:
    """Codes, what reads them, and what trains that.

        θ_ae ← Adam(∇ MSE(θ_ae(B), B))     B: incoming inputs, and inputs read from codes

    With one seed, two learners that retrieve differently train the same autoencoder and store the same codes at every
    step, unless the autoencoder draws random numbers even outside its training.
    """

    def __init__(self, memory: Memory, network: Network, codec: Codec, schedule: Schedule, seed: int) -> None:
        """Combine the parts.

        Args:
            memory: Stores the codes.
            network: The autoencoder, with random numbers of its own.
            codec: Reads and writes the codes now.
            schedule: When to train, and when to update the codes.
            seed: Of the order of samples and of the codes that are replayed.
        """
        self.memory, self.network, self.schedule, self.seed = memory, network, schedule, seed
        self.codec = codec
        self.steps = 0  # of the autoencoder's training
        self.begun: tuple[int, int, int] | None = None  # the task that is prepared, its samples, the steps taken
        self.prepared_task: int | None = None  # the task whose data the autoencoder has been trained on
        self.unprepared_batches = 0
        self.input: Tensor | None = None  # dtype and shape of one input, which its code does not show; no numbers

    def prepare(self, x: Tensor, task: int, excluded: Excluded, ready: Ready, on_step: OnStep | None) -> None:
        """Train on a task's inputs and on inputs read from codes, or resume that. Each step is atomic.

        Args:
            x: All inputs of the task.
            task: The number of the task.
            excluded: The task whose codes are not replayed.
            ready: Turns inputs into the autoencoder's.
            on_step: Called after each step with the number of steps done and of all steps.
        """
        if self.prepared_task == task:
            return
        an_epoch, steps = self.schedule.steps(len(x))
        begun, samples, done = self.begun or (None, 0, 0)
        if begun == task and samples != len(x):
            raise InvalidInput(f"task {task} began with {samples} samples, these are {len(x)}; begin it with the same")
        changes, size = None, min(self.schedule.batch, len(x))
        for step in range(done if begun == task else 0, steps):
            epoch, number = divmod(step, an_epoch)
            with all_or_nothing(self.network, self.memory, self) as commit:
                with self.network.random:
                    if number == 0 or self.memory.changes != changes:  # in ``on_step`` samples may have been removed
                        again, passed = changes is None and number > 0, self.network.samples_passed
                        changes, slots = self.memory.changes, self.memory.slots(excluded)
                        order = torch.from_numpy(self._order(len(x), epoch, task))
                        with borrowed(RandomState(self.seed, f"autoencoder, task {task}, read ahead in epoch {epoch}")):
                            read = read_ahead(self.codec, self.memory, slots, len(x))
                        if again:  # after an interruption, which must not count
                            self.network.samples_passed = passed
                    self._train(ready(x[order[number * size : (number + 1) * size]]), slots, read)
                    if number + 1 == an_epoch and (self.schedule.refresh == "epoch" or step + 1 == steps):
                        self.update(ready(x[order[:CALIBRATION_SAMPLES]]))
                    self.input, self.begun = form_of(x), (task, len(x), step + 1)
                    self.prepared_task = task if step + 1 == steps else None
                commit()
            if on_step is not None:
                on_step(step + 1, steps)

    def train_on(self, x: Tensor, slots: Tensor) -> None:
        """Take as many steps as there are epochs, on a batch whose task was not prepared."""
        for _ in range(self.schedule.epochs):
            self._train(x, slots)
        if not len(self.memory):  # there is no code yet that needs an older autoencoder
            self.codec = self.codec.renewed(self.memory, x)

    def _train(self, x: Tensor, slots: Tensor, read: Tensor | None = None) -> None:
        """Take one step on these inputs and on inputs read from the codes at some of these slots."""
        network = self.network
        if len(slots):
            generator = numpy_generator(self.seed, f"autoencoder, step {self.steps}")
            count = min(self.schedule.budget, len(slots))
            chosen = torch.from_numpy(generator.choice(len(slots), count, replace=False))
            replayed = self.codec.read(self.memory.get(slots[chosen]).x) if read is None else read[chosen]
            x = torch.cat([x, replayed])
        with network.training():
            rebuilt = network.ask("decode", encoded(network, x))
            check_rebuilt(x, rebuilt, "autoencoder")
            loss = F.mse_loss(at_least_float32(rebuilt), x)
            finite(loss)
            network.save_parameters()
            run(network.step(network.gradient(loss)))
        self.steps += 1

    def _order(self, samples: int, epoch: int, task: int) -> Any:
        """Return the order of a task's samples in an epoch."""
        return numpy_generator(self.seed, f"autoencoder, task {task}, epoch {epoch}").permutation(samples)

    @property
    def due(self) -> bool:
        """Whether codes are updated now: after 2, 4, 8, … and then every so many batches that were not prepared."""
        batches, every = self.unprepared_batches + 1, self.schedule.refresh_every
        return batches % every == 0 or (batches < every and batches & (batches - 1) == 0)

    def update(self, sample: Tensor) -> None:
        """Read every code with the codec of before and write it with the present autoencoder: `all_or_nothing`.

        Args:
            sample: Inputs to calibrate bytes on.
        """
        before, self.codec = self.codec, self.codec.renewed(self.memory, sample)
        for slots in torch.split(self.memory.slots(), BLOCK):
            if len(slots):
                self.memory.rewrite(slots, self.codec.encode(before.read(self.memory.get(slots).x)))

    def keep(self, codes: Batch, inputs: Tensor) -> None:
        """Store codes of inputs, inside `all_or_nothing`."""
        self.memory.keep(codes, self.memory.check(codes))
        self.input = form_of(inputs)

    def check(self, x: Tensor) -> None:
        """Check that inputs have the form of those before: their codes would not show it."""
        if self.input is not None:
            check_leaf(x, self.input, "inputs")

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the memory with everything in it, and those of an equal memory of raw inputs."""
        memory, image = self.memory, 0 if self.input is None else self.input.nbytes
        code = memory.get(memory.slots()[:1]).x.nbytes if len(memory) else 0
        return {
            "codes": len(memory),
            "bytes": memory.nbytes,
            "bytes_as_inputs": memory.nbytes + len(memory) * (image - code),
            "code_bytes": code,
            "input_bytes": image,
            "autoencoder_bytes": self.codec.nbytes,
        }

    def snapshot(self) -> Restore:
        """Return a function that restores what is known of the codes; the memory restores the codes themselves."""
        return partial(vars(self).update, dict(vars(self)))

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the memory."""
        form = self.input
        return {name: getattr(self, name) for name in COUNTS} | {
            "autoencoder": network_state(self.network),
            "random": self.network.random.get(),
            "codec": self.codec.state_dict(),
            "input": None if form is None else (str(form.dtype), tuple(form.shape[1:])),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        counts = {**dict.fromkeys(COUNTS, count), "prepared_task": optional(count)}
        shape = optional((str, lambda sizes: type(sizes) is tuple and all(map(count, sizes))))
        form = counts | {"begun": optional((count, count, count)), "input": shape}
        check({name: state[name] for name in form}, form, "the codes")
        load_network_state(self.network, state["autoencoder"])
        self.network.random.set(state["random"])
        self.codec, self.input = self.codec.loaded(state["codec"]), None
        if state["input"] is not None:
            dtype, shape = state["input"]
            self.input = torch.empty(1, *shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device="meta")
        vars(self).update({name: state[name] for name in COUNTS})


def form_of(x: Tensor) -> Tensor:
    """Return dtype and shape of one input, as a tensor without numbers."""
    return torch.empty_like(x[:1], device="meta")


def read_ahead(codec: Codec, memory: Memory, slots: Tensor, samples: int) -> Tensor | None:
    """Return the inputs of the codes at these slots, read once for an epoch in which most are replayed several times.

    This is for up to twice as many codes as the task has samples, which are in memory anyway. More codes are read as
    they are drawn, and the result is None.
    """
    if not 0 < len(slots) <= 2 * samples or codec.statistics == "batch":
        return None
    return torch.cat([codec.read(memory.get(some).x) for some in torch.split(slots, BLOCK)])
