"""Prepared tasks, kept beside the runs of a campaign for other runs that would prepare them in the same way.

AE and AE-MIR with one seed train the same autoencoder on the same rows, and so do all runs that differ in nothing but
the classifier: the first to come trains it, the others take it over, with what it has cost.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, Final

import torch
from torch import Tensor

from ..batch import Batch
from ..checkpoint import read_state, write_state
from ..errors import CheckpointError, RehearseError
from ..files import lock
from ..learners import CodeReplay, Learner
from .environment import environment

PAUSE_SECONDS: Final = 0.5
PATIENCE_SECONDS: Final = 3600.0  # whoever is at it so long is in trouble


@dataclass(frozen=True)
class Cost:
    """What a preparation took: rows through a network, seconds of the clock and of the processor."""

    rows: int
    seconds: float
    cpu_seconds: float

    def __post_init__(self) -> None:
        if not all(type(part) in (int, float) and math.isfinite(part) and part >= 0 for part in astuple(self)):
            raise CheckpointError(f"a cost is made of numbers, 0 or more, not {astuple(self)}")


@dataclass(frozen=True)
class Preparation:
    """A task that a run may take over from another, or leave for others.

    Its file is named after all that the preparation starts from: the task's rows, software, processor, random numbers,
    what the learner has trained so far, its memory. So what stands there is bit for bit what this run would make. One
    that is not there, cannot be read or written, or does not fit, is no trouble: the task is prepared here.
    """

    file: Path
    task: int
    learner: CodeReplay

    @classmethod
    def of(cls, learner: Learner, data: Batch | None, task: int, folder: Path) -> Preparation | None:
        """None where there is nothing to share: the learner prepares nothing much, or has begun with it."""
        if data is None or not isinstance(learner, CodeReplay):
            return None
        start = _starting_point(learner, task)
        if start is None:
            return None
        everything = [_software(), environment(), str(learner.device), data.x, start]
        return cls(folder / f"task-{task}-{_digest(everything)}", task, learner)

    @contextlib.contextmanager
    def alone(self, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """One run at a time is at a preparation; another waits, which usually takes no longer than to make it too.

        ``waiting`` is called every now and then, and may raise. Where there is no directory, or no lock to be had,
        nobody waits.
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        with contextlib.ExitStack() as held:
            file: IO[str] | None = None
            with contextlib.suppress(OSError):
                self.file.parent.mkdir(parents=True, exist_ok=True)
                file = held.enter_context(open(f"{self.file}.lock", "a", encoding="utf-8"))
            while file is not None and _is_anothers(file) and time.monotonic() < deadline:
                if waiting is not None:
                    waiting()
                time.sleep(PAUSE_SECONDS)
            yield

    def take(self) -> tuple[Cost, str] | None:
        """Give the learner what a run has left; says what that took, and which run's it is. None: nothing changed."""
        try:
            kept = read_state(self.file)
            cost, maker = Cost(*kept["cost"]), str(kept["maker"])
            if kept["task"] != self.task:
                raise CheckpointError(f"{self.file} is of another task")
            _take(self.learner, kept["prepared"], cost.rows)
        except Exception:  # whatever is wrong with a file that need not be there
            return None
        return cost, maker

    def keep(self, cost: Cost, maker: str) -> None:
        """Leave what the learner has made of the task for others, if there is room."""
        with contextlib.suppress(OSError, RehearseError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            prepared = {"prepared": _prepared(self.learner.state_dict()), "task": self.task}
            write_state(self.file, {**prepared, "cost": astuple(cost), "maker": maker})


TRAINED: Final = ("autoencoder", "random", "seed", "codec", "steps", "begun", "prepared_task", "input")
"""What `CodeReplay.begin_task` changes of a learner's own state, beside the codes in its memory."""


def _starting_point(learner: CodeReplay, task: int) -> dict[str, Any] | None:
    """Return all that a preparation starts from but the task's samples; None if it has begun, or cannot be shared."""
    state, coded = learner.state_dict(), learner.coded
    own, memory = state["own"], state["memory"]
    if (own["begun"] is not None and own["begun"][0] == task) or memory["file"] is not None:
        return None
    network = coded.network
    own["autoencoder"].pop("samples_passed")
    return {
        "own": {name: own[name] for name in ("autoencoder", "random", "seed", "codec", "steps")},
        "how": (astuple(coded.schedule), network.clip, str(network.precision.training)),
        "memory": {name: memory[name] for name in ("x", "columns")},
        "replayed": learner.memory.slots(task if learner.exclude_current_task else None),
    }


def _prepared(state: dict[str, Any]) -> dict[str, Any]:
    """Return what a preparation has made: the autoencoder, and the codes as it reads them."""
    return {"own": {name: state["own"][name] for name in TRAINED}, "codes": state["memory"]["x"]}


def _take(learner: CodeReplay, prepared: dict[str, Any], samples: int) -> None:
    """Give a learner what another has prepared; what does not fit is refused, and nothing changed."""
    state, own = learner.state_dict(), prepared["own"]
    passed = state["own"]["autoencoder"]["samples_passed"]
    _, rows, steps = own["begun"]
    if steps != learner.coded.schedule.steps(rows)[1]:
        raise CheckpointError(f"{steps} steps on {rows} samples are not as many as would be taken here")
    state["own"] |= own
    state["own"]["autoencoder"]["samples_passed"] = passed + samples
    state["memory"]["x"] = prepared["codes"]
    learner.load_state_dict(state)


def _is_anothers(file: IO[str]) -> bool:
    try:
        return not lock(file)
    except OSError:  # the file system knows no locks
        return False


@cache
def _software() -> str:
    """A digest of the package's own code as it is on the disk: a commit does not tell what was changed since."""
    here = Path(__file__).parents[1]  # the library and the lab
    code = sorted([*here.rglob("*.py"), *here.rglob("*.c")])
    return _digest([[str(path.relative_to(here)), path.read_text("utf-8")] for path in code])


def _digest(value: Any) -> str:
    """16 hex digits of SHA-256 over plain values and tensors."""
    hashed = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            rows = part.detach().cpu().contiguous()
            hashed.update(f"{rows.dtype} {tuple(rows.shape)}".encode())
            if rows.numel():
                hashed.update(rows.view(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(part, dict):
            hashed.update(b"{")
            for name in sorted(part, key=str):
                hashed.update(f"{name}:".encode())
                add(part[name])
        elif isinstance(part, list | tuple):
            hashed.update(b"[")
            for each in part:
                add(each)
        else:
            hashed.update(repr(part).encode())
        hashed.update(b",")

    add(value)
    return hashed.hexdigest()[:16]
