"""A memory of codes, the autoencoder that reads and writes them, and its training; no classifier takes part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import InvalidInput
from ...losses import at_least_float32
from ...memory import Memory
from ...network import Network, finite
from ...random import RandomState, borrowed, numpy_generator
from ...states import load_network_state, network_state
from ...undo import Restore, all_or_nothing, run
from .codec import Codec, check_codes, check_rebuilt
from .update import CALIBRATION_SAMPLES, Form, Update, read_ahead, renewed, sizes

Refresh = Literal["epoch", "task"]


@dataclass(frozen=True)
class Schedule:
    """How long the autoencoder is trained, on how many samples at a time, and when codes are brought up to date."""

    epochs: int
    budget: int  # codes replayed in a step
    batch: int
    refresh: Refresh
    refresh_every: int

    def steps(self, samples: int) -> tuple[int, int]:
        """Return the number of steps in an epoch of so many samples, and in all epochs."""
        an_epoch = samples // min(self.batch, samples)
        return an_epoch, an_epoch * self.epochs


@dataclass(frozen=True)
class Coding:
    """What is known of the codes; replaced as a whole, so that an undo needs no copy."""

    codec: Codec
    steps: int = 0
    """Of the autoencoder's training."""
    begun: tuple[int, int, int] | None = None
    """The task that is prepared, its samples, the steps taken."""
    prepared_task: int | None = None
    """The task whose data the autoencoder has been trained on."""
    unprepared_batches: int = 0
    input: Form | None = None
    """Of incoming samples."""


class CodedMemory:
    """Codes, what reads them, and what trains that.

        θ_ae ← Adam(∇ MSE(θ_ae(B), B))     B: incoming inputs, and inputs read from codes

    With one seed, two learners that retrieve differently train the same autoencoder and hold the same codes at every
    step, unless it draws random numbers even outside its training.
    """

    def __init__(self, memory: Memory, network: Network, codec: Codec, schedule: Schedule, seed: int) -> None:
        """Combine the parts.

        Args:
            memory: Holds the codes.
            network: The autoencoder, with random numbers of its own.
            codec: Reads and writes the codes now.
            schedule: When to train, and when to bring codes up to date.
            seed: Of the order of samples and of the codes that are replayed.
        """
        self.memory, self.network, self.schedule, self.seed = memory, network, schedule, seed
        self.now = Coding(codec)

    def prepare(
        self,
        x: Tensor,
        task: int,
        excluded: Tensor | int | None,
        ready: Callable[[Tensor], Tensor],
        on_step: Callable[[int, int], None] | None,
    ) -> None:
        """Train on a task's inputs and on what is read from codes, from where that stands. Each step is atomic.

        Args:
            x: All inputs of the task.
            task: The number of the task.
            excluded: The task whose codes are not replayed.
            ready: Turns inputs into the autoencoder's.
            on_step: Called after each step with the number of steps done and of all steps.
        """
        an_epoch, steps = self.schedule.steps(len(x))
        start = self._steps_done(task, len(x))
        changes, size = None, min(self.schedule.batch, len(x))
        for step in range(start, steps):
            epoch, number = divmod(step, an_epoch)
            with self.network.random, all_or_nothing(self.network, self.memory, self) as commit:
                if number == 0 or step == start:
                    order = torch.from_numpy(self._order(len(x), epoch, task))
                if number == 0 or self.memory.changes != changes:  # in ``on_step`` samples may have been removed
                    again, passed = changes is None and number > 0, self.network.samples_passed
                    changes, slots = self.memory.changes, self.memory.slots(excluded)
                    with borrowed(RandomState(self.seed, f"autoencoder, task {task}, read ahead in epoch {epoch}")):
                        read = read_ahead(self.now.codec, self.memory, slots, len(x))
                    if again:  # after a stop, which must not count
                        self.network.samples_passed = passed
                self._train(ready(x[order[number * size : (number + 1) * size]]), slots, read)
                if number + 1 == an_epoch and (self.schedule.refresh == "epoch" or step + 1 == steps):
                    self.write(Update.of(self.now.codec, self.memory, ready(x[order[:CALIBRATION_SAMPLES]])))
                done = task if step + 1 == steps else None
                begun, form = (task, len(x), step + 1), Form.of(x)
                self.now = replace(self.now, begun=begun, input=form, prepared_task=done)
                commit(())
            if on_step is not None:
                on_step(step + 1, steps)

    def _steps_done(self, task: int, samples: int) -> int:
        if self.now.begun is None or self.now.begun[0] != task:
            return 0
        _, before, done = self.now.begun
        if self.now.prepared_task != task and before != samples:
            raise InvalidInput(f"task {task} began with {before} samples, these are {samples}; begin it with the same")
        return self.schedule.steps(before)[1] if self.now.prepared_task == task else done

    def train_on(self, x: Tensor, slots: Tensor) -> None:
        """Take as many steps as there are epochs, on a batch whose task was not prepared."""
        for _ in range(self.schedule.epochs):
            self._train(x, slots)
        if not len(self.memory):  # there is no code yet that needs an older autoencoder
            self.now = replace(self.now, codec=renewed(self.now.codec, self.memory, x))

    def _train(self, x: Tensor, slots: Tensor, read: Tensor | None = None) -> None:
        """Take one step on these inputs and on what is read from the codes at some of these slots."""
        network = self.network
        if len(slots):
            generator = numpy_generator(self.seed, f"autoencoder, step {self.now.steps}")
            count = min(self.schedule.budget, len(slots))
            chosen = torch.from_numpy(generator.choice(len(slots), count, replace=False))
            replayed = self.now.codec.read(self.memory.get(slots[chosen]).x) if read is None else read[chosen]
            x = torch.cat([x, replayed])
        with network.training():
            codes = network.ask("encode", x)
            check_codes(x, codes)
            rebuilt = network.ask("decode", codes)
            check_rebuilt(x, rebuilt)
            loss = F.mse_loss(at_least_float32(rebuilt), x)
            finite(loss)
            gradient = network.gradient(loss)
            network.save_parameters()
            run(network.step(gradient))
        self.now = replace(self.now, steps=self.now.steps + 1)

    def _order(self, samples: int, epoch: int, task: int) -> Any:
        """Return in which order a task's samples come in an epoch."""
        return numpy_generator(self.seed, f"autoencoder, task {task}, epoch {epoch}").permutation(samples)

    def update_if_due(self, x: Tensor) -> Update | None:
        """Return new codes after 2, 4, 8, … and then every so many batches of tasks that were not prepared."""
        batches, every = self.now.unprepared_batches + 1, self.schedule.refresh_every
        if len(self.memory) and (batches % every == 0 or (batches < every and batches & (batches - 1) == 0)):
            return Update.of(self.now.codec, self.memory, x)
        return None

    def write(self, update: Update | None) -> None:
        """Bring the codes up to date, inside `all_or_nothing`."""
        if update is not None:
            self.now = replace(self.now, codec=update.write(self.memory))

    def check(self, x: Tensor) -> None:
        """Refuse inputs of another form than before: a memory of codes could not notice."""
        if self.now.input is not None:
            self.now.input.check(x)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of the memory, beside those of as many raw inputs."""
        return sizes(self.memory, self.now.codec, self.now.input)

    def snapshot(self) -> Restore:
        """Return a function that restores what is known of the codes; the memory restores the codes themselves."""
        now = self.now

        def restore() -> None:
            self.now = now

        return restore

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the memory."""
        now = self.now
        return {
            "autoencoder": network_state(self.network),
            "random": self.network.random.get(),
            "seed": self.seed,
            "codec": now.codec.state_dict(),
            "steps": now.steps,
            "begun": now.begun,
            "prepared_task": now.prepared_task,
            "unprepared_batches": now.unprepared_batches,
            "input": None if now.input is None else tuple(now.input),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what `state_dict` returned."""
        load_network_state(self.network, state["autoencoder"])
        self.network.random.set(state["random"])
        self.seed = int(state["seed"])
        self.now = Coding(
            self.now.codec.loaded(state["codec"]),
            int(state["steps"]),
            None if state["begun"] is None else tuple(state["begun"]),
            state["prepared_task"],
            int(state["unprepared_batches"]),
            None if state["input"] is None else Form(*state["input"]),
        )
