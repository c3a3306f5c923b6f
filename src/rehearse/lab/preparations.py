"""Prepared tasks that runs of a campaign share.

AE and AE-MIR with one seed train the same autoencoder on the same samples, and so do all runs that differ in nothing
but the classifier: the first run trains it, the others reuse it and report its cost.
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
PATIENCE_SECONDS: Final = 3600.0  # after this long a run prepares the task itself


@dataclass(frozen=True)
class Cost:
    """What a preparation took: samples passed, seconds, and CPU seconds."""

    samples: int
    seconds: float
    cpu_seconds: float

    def __post_init__(self) -> None:
        if not all(type(part) in (int, float) and math.isfinite(part) and part >= 0 for part in astuple(self)):
            raise CheckpointError(f"a cost is made of numbers, 0 or more, not {astuple(self)}")


@dataclass(frozen=True)
class Preparation:
    """A prepared task that a run reuses, or stores for others.

    Its file is named after everything that the preparation starts from: the task's samples, software, processor, random
    numbers, the learner's training so far, its memory. Its content is therefore bit for bit what this run would
    compute. If the file is missing, cannot be read or written, or does not fit, the task is prepared here.
    """

    file: Path
    task: int
    learner: CodeReplay

    @classmethod
    def of(cls, learner: Learner, data: Batch | None, task: int, folder: Path) -> Preparation | None:
        """Return the preparation of a task; None if the learner prepares nothing, or has begun to."""
        if data is None or not isinstance(learner, CodeReplay):
            return None
        start = _starting_point(learner, task)
        if start is None:
            return None
        everything = [_software(), environment(), str(learner.device), data.x, start]
        return cls(folder / f"task-{task}-{_digest(everything)}", task, learner)

    @contextlib.contextmanager
    def alone(self, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold a lock, so that one run at a time prepares a task; waiting usually takes no longer than preparing it.

        ``waiting`` is called every now and then, and may raise. Without a directory or locks no run waits.
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
        """Load what another run stored, and return its cost and its maker; None if nothing was loaded."""
        try:
            kept = read_state(self.file)
            cost, maker = Cost(*kept["cost"]), str(kept["maker"])
            if kept["task"] != self.task:
                raise CheckpointError(f"{self.file} is of another task")
            _take(self.learner, kept["prepared"], cost.samples)
        except Exception:  # whatever is wrong with a file that need not be there
            return None
        return cost, maker

    def keep(self, cost: Cost, maker: str) -> None:
        """Store what the learner has prepared for other runs, if possible."""
        with contextlib.suppress(OSError, RehearseError):
            self.file.parent.mkdir(parents=True, exist_ok=True)
            prepared = {"prepared": _prepared(self.learner.state_dict()), "task": self.task}
            write_state(self.file, {**prepared, "cost": astuple(cost), "maker": maker}, mode=0o600)


TRAINED: Final = ("autoencoder", "random", "seed", "codec", "steps", "begun", "prepared_task", "input")
"""What `CodeReplay.begin_task` changes of a learner's own state, beside the codes in its memory."""


def _starting_point(learner: CodeReplay, task: int) -> dict[str, Any] | None:
    """Return what a preparation starts from, besides the task's samples; None if it has begun or cannot be shared."""
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
    """Return the result of a preparation: the autoencoder, and the codes as it reads them."""
    return {"own": {name: state["own"][name] for name in TRAINED}, "codes": state["memory"]["x"]}


def _take(learner: CodeReplay, prepared: dict[str, Any], samples: int) -> None:
    """Load into a learner what another has prepared; raises and changes nothing if it does not fit."""
    state, own = learner.state_dict(), prepared["own"]
    passed = state["own"]["autoencoder"]["samples_passed"]
    _, size, steps = own["begun"]
    if steps != learner.coded.schedule.steps(size)[1]:
        raise CheckpointError(f"{steps} steps on {size} samples are not as many as would be taken here")
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
    """Return a digest of the package's code as it is on disk, which a commit does not identify."""
    here = Path(__file__).parents[1]  # the library and the lab
    code = sorted([*here.rglob("*.py"), *here.rglob("*.c")])
    return _digest([[str(path.relative_to(here)), path.read_text("utf-8")] for path in code])


def _digest(value: Any) -> str:
    """Return 16 hex digits of SHA-256 over plain values and tensors."""
    hashed = hashlib.sha256()

    def add(part: Any) -> None:
        if isinstance(part, Tensor):
            values = part.detach().cpu().contiguous()
            hashed.update(f"{values.dtype} {tuple(values.shape)}".encode())
            if values.numel():
                hashed.update(values.view(-1).view(torch.uint8).numpy().tobytes())
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
