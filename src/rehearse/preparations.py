"""Prepared tasks, kept beside the runs of a campaign for other runs that would prepare them in the same way.

AE and AE-MIR with one seed train the same autoencoder on the same rows, and so do all runs that differ in nothing but
the classifier: the first to come trains it, the others take it over, with what it has cost.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import torch
from torch import Tensor

from .checkpoint import read_state, write_state
from .environment import environment
from .errors import CheckpointError
from .learners import Learner

PAUSE_SECONDS: Final = 0.5


@dataclass(frozen=True)
class Cost:
    """What a preparation took: rows through a network, seconds of the clock and of the processor."""

    rows: int
    seconds: float
    cpu_seconds: float


@dataclass(frozen=True)
class Preparations:
    """A folder with a file for each task. Runs of one folder prepare every task in the same way."""

    folder: Path

    @contextlib.contextmanager
    def alone(self, task: int, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """One run at a time is at a task; another waits, which takes no longer than to prepare the task as well.

        ``waiting`` is called every now and then, and may raise. Where the file system knows no locks nobody waits.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / f"task-{task}.lock", "a", encoding="utf-8") as file:
            while not _locked(file):
                if waiting is not None:
                    waiting()
                time.sleep(PAUSE_SECONDS)
            yield

    def take(self, learner: Learner, task: int) -> Cost | None:
        """Give the learner what another has made of the task, and say what that took; None where there is nothing.

        The file must be of the same software and processor, and the learner's random numbers and memory must be what
        they were there: then it goes on bit for bit as if it had prepared the task itself.
        """
        try:
            kept = read_state(self._file(task))
            if kept["environment"] != environment() or not torch.equal(kept["random"], _random(learner)):
                return None
            cost = Cost(*kept["cost"])
            learner.take_preparation(kept["prepared"], cost.rows)
            learner.random.set(learner.random.get() | {"cpu": kept["random_after"]})
        except (CheckpointError, KeyError, TypeError):  # none, damaged, or of a memory with other rows
            return None
        return cost

    def keep(self, learner: Learner, task: int, random: Tensor, cost: Cost) -> None:
        """Keep what the learner has made of the task; ``random`` are its random numbers from before."""
        prepared = learner.preparation()
        if prepared is None:
            return
        taken = [cost.rows, cost.seconds, cost.cpu_seconds]
        kept = {"random": random, "random_after": _random(learner), "cost": taken, "environment": environment()}
        write_state(self._file(task), {"prepared": prepared, **kept})

    def clear(self) -> None:
        """Remove them: nobody needs them any more."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)

    def _file(self, task: int) -> Path:
        return self.folder / f"task-{task}"


def _locked(file: IO[str]) -> bool:
    """Whether the file is this process's now; the system lets go of it when it is closed, however the process ends."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # there are no locks here; what comes out is the same
    return True


def _random(learner: Learner) -> Tensor:
    return learner.random.get()["cpu"]
