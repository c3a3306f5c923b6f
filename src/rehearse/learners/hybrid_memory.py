"""A memory of codes, the autoencoder that reads and writes them, and its training; nothing of a classifier enters."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import astuple, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..compute import RandomState
from ..errors import CheckpointError, InvalidInput
from ..memory import Memory
from .hybrid_codec import Codec
from .hybrid_codes import CALIBRATION_ROWS, Form, Update, read_ahead, renewed, sizes
from .hybrid_training import AutoencoderTraining

Refresh = Literal["epoch", "task"]


@dataclass(frozen=True)
class Schedule:
    """How long the autoencoder is trained, on how many rows at a time, and when codes are brought up to date."""

    epochs: int
    budget: int  # codes rehearsed in a step
    batch: int
    refresh: Refresh
    refresh_every: int

    def steps(self, rows: int) -> tuple[int, int]:
        """How many there are in an epoch of so many rows, and in all epochs."""
        an_epoch = rows // min(self.batch, rows)
        return an_epoch, an_epoch * self.epochs


class CodedMemory:
    """Codes, what reads them, and what trains that.

    With one seed two learners that recall differently train the same autoencoder and hold the same codes at every
    step, unless it draws random numbers even outside its training. ``count`` is told how many rows pass the encoder or
    the decoder here.
    """

    def __init__(
        self,
        memory: Memory,
        training: AutoencoderTraining,
        codec: Codec,
        schedule: Schedule,
        count: Callable[[int], None],
    ) -> None:
        self.memory, self.training, self.codec, self.schedule = memory, training, codec, schedule
        self.count = count
        self.begun: tuple[int, int, int] | None = None  # the task that is trained for, its rows, the steps taken
        self.prepared_task: int | None = None  # the task whose data the autoencoder has been trained on
        self.unprepared_batches = 0
        self.input: Form | None = None  # of what arrives

    @property
    def autoencoder(self) -> nn.Module:
        return self.training.autoencoder

    # ------------------------------------------------------------------------------------------------------ training

    def prepare(
        self,
        x: Tensor,
        task: int,
        excluded: Tensor | int | None,
        ready: Callable[[Tensor], Tensor],
        on_step: Callable[[int, int], None] | None,
    ) -> None:
        """Train on a task's inputs and on what is read from the codes of all but the excluded, from where that stands.

        ``ready`` makes inputs what the autoencoder takes.
        """
        size = min(self.schedule.batch, len(x))
        an_epoch, steps = self.schedule.steps(len(x))
        start = 0
        if self.begun is not None and self.begun[0] == task:
            _, rows, start = self.begun
            if self.prepared_task == task:
                return
            if rows != len(x):
                raise InvalidInput(f"task {task} began with {rows} rows, these are {len(x)}; begin it with the same")
        changes = None
        for step in range(start, steps):
            epoch, number = divmod(step, an_epoch)
            if number == 0 or step == start:
                order = torch.from_numpy(self.training.order(len(x), epoch, task))
            passed = 0
            if number == 0 or self.memory.changes != changes:  # in ``on_step`` rows may have been forgotten
                again = changes is None and number > 0  # after a stop, which is to cost nothing
                changes, slots = self.memory.changes, self.memory.slots(excluded)
                with RandomState(self.training.seed, f"autoencoder, task {task}, read ahead in epoch {epoch}"):
                    read = read_ahead(self.codec, self.memory, slots, len(x))
                passed = 0 if read is None or again else len(read)
            due = number + 1 == an_epoch and (self.schedule.refresh == "epoch" or step + 1 == steps)
            with self.training.drawing(), self.training.restored() if due else nullcontext():
                passed += self.train(ready(x[order[number * size : (number + 1) * size]]), slots, read)
                if due:
                    sample = ready(x[order[:CALIBRATION_ROWS]])
                    passed += self.carry_out(Update.of(self.codec, self.memory, self.autoencoder, sample))
            self.count(passed)
            self.begun, self.input = (task, len(x), step + 1), Form.of(x)
            self.prepared_task = task if step + 1 == steps else None
            if on_step is not None:
                on_step(step + 1, steps)

    def train_on(self, x: Tensor, slots: Tensor) -> None:
        """As many steps as there are epochs, on a batch whose task nobody has prepared."""
        with self.training.drawing():
            for _ in range(self.schedule.epochs):
                self.count(self.train(x, slots))
        if not len(self.memory):  # there is no code yet that an older autoencoder would be needed for
            self.codec, passed = renewed(self.codec, self.memory, self.autoencoder, x)
            self.count(passed)

    def train(self, x: Tensor, slots: Tensor, read: Tensor | None = None) -> int:
        """One step on these rows and on what is read from the codes at some of these slots; says how many rows passed
        the encoder or the decoder."""
        x, passed = self.training.computation.layout(x), 0
        if len(slots):
            chosen = self.training.draw(len(slots), self.schedule.budget)
            rehearsed = self.codec.read(self.memory.get(slots[chosen]).x) if read is None else read[chosen]
            x, passed = torch.cat([x, rehearsed]), len(rehearsed) if read is None else 0
        self.training.step(x)
        return passed + 2 * len(x)

    def update_if_due(self, x: Tensor) -> Update | None:
        """Where nobody has trained the autoencoder ahead it has moved: after 2, 4, 8, … and then every so many batches
        codes are brought up to date, if there are any."""
        batches, every = self.unprepared_batches + 1, self.schedule.refresh_every
        if len(self.memory) and (batches % every == 0 or (batches < every and batches & (batches - 1) == 0)):
            return Update.of(self.codec, self.memory, self.autoencoder, x)
        return None

    def carry_out(self, update: Update) -> int:
        """Bring the codes up to date; says how many rows passed the encoder or the decoder for that."""
        self.codec = update.carried_out(self.memory)
        return update.rows

    # --------------------------------------------------------------------------------------- through the autoencoder

    def through(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The codes of inputs as they are stored, and what can be read from those."""
        self.count(2 * len(x))
        return self.codec.through(x)

    def read(self, stored: Tensor) -> Tensor:
        """Inputs from codes as they are stored."""
        self.count(len(stored))
        return self.codec.read(stored)

    def check(self, x: Tensor) -> None:
        """Refuse inputs of another form than came before: what a memory of codes could not tell by looking at them."""
        if self.input is not None:
            self.input.check(x)

    def sizes(self) -> dict[str, int]:
        return sizes(self.memory, self.codec, self.input)

    # ---------------------------------------------------------------------------------------------- for other learners

    def before_preparation(self, task: int, excluded: Tensor | int | None) -> dict[str, Any] | None:
        """All that has a part in the training for this task but the task's rows; None where it has begun."""
        if self.begun is not None and self.begun[0] == task:
            return None
        return {
            "training": self.training.state_dict(),
            "how": (astuple(self.schedule), self.training.clip, str(self.training.computation.training)),
            "codec": self.codec.state_dict(),
            "memory": self._stored(),
            "rehearsed": self.memory.slots(excluded),
        }

    def preparation(self) -> dict[str, Any]:
        """What the training has made of the task: the autoencoder, and the codes as it reads them."""
        return {
            "training": self.training.state_dict(),
            "codec": self.codec.state_dict(),
            "codes": self._stored().get("codes"),
            "begun": self.begun,
            "input": None if self.input is None else tuple(self.input),
        }

    def take_preparation(self, prepared: dict[str, Any]) -> None:
        """As if it had been trained here; what does not fit is refused, and nothing changed."""
        try:
            (task, rows, steps), form = prepared["begun"], Form(*prepared["input"])
            if steps != self.schedule.steps(rows)[1]:
                raise InvalidInput(f"{steps} steps on {rows} rows are not as many as would be taken here")
            codec = self.codec.renewed(self.autoencoder)
            codec.load_state_dict(prepared["codec"])
            slots = self.memory.slots()
            with self.training.restored():
                self.training.load_state_dict(prepared["training"])
                if len(slots):
                    self.memory.rewrite(slots, prepared["codes"])
        except Exception as problem:
            raise CheckpointError(f"this preparation does not fit: {problem}") from problem
        self.codec, self.begun, self.prepared_task, self.input = codec, (task, rows, steps), task, form

    def _stored(self) -> dict[str, Any]:
        slots = self.memory.slots()
        if not len(slots):
            return {}
        rows = self.memory.get(slots)
        return {"slots": slots, "y": rows.y, "task": rows.task, "codes": rows.x}

    # --------------------------------------------------------------------------------------------------------- state

    def to(self, device: torch.device | str) -> None:
        self.autoencoder.to(device)
        self.training.optimizer.load_state_dict(self.training.optimizer.state_dict())  # follows the parameters
        self.codec.to(device)

    def state_dict(self) -> dict[str, Any]:
        return {
            "memory": self.memory.state_dict(),
            "training": self.training.state_dict(),
            "codec": self.codec.state_dict(),
            "begun": self.begun,
            "prepared_task": self.prepared_task,
            "unprepared_batches": self.unprepared_batches,
            "input": None if self.input is None else tuple(self.input),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state["memory"])
        self.training.load_state_dict(state["training"])
        self.codec.load_state_dict(state["codec"])
        self.begun, self.prepared_task = state["begun"], state["prepared_task"]
        self.unprepared_batches = int(state["unprepared_batches"])
        self.input = None if state["input"] is None else Form(*state["input"])
