"""One run of a campaign, from its checkpoint to its result in the store: what every engine does."""

from __future__ import annotations

import contextlib
import errno
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...errors import CheckpointError, RehearseError
from ...files import lock, make_folder
from ..experiment import Progress, Settings, Stopped, execute
from ..spec import Spec
from .store import Store, StoreError, unwritable

LOCK_SECONDS = 5.0  # a process whose parent was killed needs a moment to notice
DISK_TROUBLE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
DISK_TROUBLE |= {errno.EINTR, errno.ENOTDIR}


class Busy(RehearseError):
    """Another process carries this run out. A campaign turns to its other runs, and comes back to it."""


def run_spec(
    spec: Spec, store: Store, settings: Settings, on_progress: Callable[[Progress], None] | None = None
) -> dict[str, Any]:
    """Run a spec to its end and store the result. A directory that cannot be written raises `StoreError`."""
    try:
        folder = store.folder(spec)
        make_folder(folder)
        with locked(folder / "lock"):
            done = store.get(spec)  # by the process that held the lock before
            if done is not None:
                return done
            result = execute(spec, folder, replace(settings, preparations=store.preparations), on_progress)
            store.put(spec, result)
            store.tidy(spec)
            return result
    except (OSError, CheckpointError) as problem:
        cause = problem.__cause__ if isinstance(problem, CheckpointError) else problem
        if isinstance(cause, OSError) and not isinstance(cause, RehearseError) and cause.errno in DISK_TROUBLE:
            raise unwritable(store.root, cause) from problem
        raise


def outcome(spec: Spec, store: Store, settings: Settings, on_progress: Callable[[Progress], None]) -> tuple[str, Any]:
    """Carry a run out; returns how it ended and what there is to say, for another process."""
    try:
        return "finished", run_spec(spec, store, settings, on_progress)
    except StoreError as problem:
        return "unwritable", str(problem)
    except Busy as problem:
        return "busy", str(problem)
    except RehearseError as problem:
        return "failed", (str(problem), "")
    except Stopped:
        raise
    except Exception as problem:
        return "failed", (f"{type(problem).__name__}: {problem}", traceback.format_exc())


@contextlib.contextmanager
def locked(path: Path, patience: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold what the lock stands for alone; the system lets go of it when the process ends, however it ends."""
    deadline = time.monotonic() + patience
    with open(path, "a+", encoding="utf-8") as file:
        while not lock(file):
            if time.monotonic() > deadline:
                file.seek(0)
                raise Busy(f"process {file.read() or 'unknown'} is at work there ({path})")
            time.sleep(0.1)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
