"""The local engine: one process a run, one thread each, so many at a time."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ..errors import RehearseError
from ..experiment import Progress, Settings, execute, with_precision
from ..spec import Spec
from .store import Store, StoreError, unwritable

PROGRESS_SECONDS = 0.5


@dataclass(frozen=True)
class Started:
    spec: Spec


@dataclass(frozen=True)
class Advanced:
    spec: Spec
    progress: Progress


@dataclass(frozen=True)
class Finished:
    spec: Spec
    result: dict[str, Any]
    again: bool = False
    """Whether the result was there already."""


@dataclass(frozen=True)
class Failed:
    spec: Spec
    error: str
    detail: str = ""


Event = Started | Advanced | Finished | Failed


def run_all(
    specs: Sequence[Spec], store: Store, settings: Settings | None = None, jobs: int | None = None
) -> Iterator[Event]:
    """Carry out the runs that have no result yet; yields what happens, as it happens.

    A failing run is told and the others go on; a directory that cannot be written any more stops them all. Closing
    the iterator ends the processes: the same call goes on from their checkpoints.
    """
    settings = settings or Settings()
    store.check_writable()
    waiting: list[Spec] = []
    resolved = (with_precision(spec, settings.device) for spec in specs)
    for spec in {spec.key: spec for spec in resolved}.values():
        done = store.get(spec)
        if done is not None:
            yield Finished(spec, done, again=True)
        else:
            waiting.append(spec)
    yield from _Workers(store, settings, jobs or os.cpu_count() or 1).run(waiting)


class _Workers:
    def __init__(self, store: Store, settings: Settings, jobs: int) -> None:
        self.store, self.settings, self.jobs = store, settings, jobs
        # Torch is imported once, by the server that the runs' processes are forked from.
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["rehearse.experiment"])
        self.running: dict[Connection, tuple[Spec, Any]] = {}

    def run(self, waiting: list[Spec]) -> Iterator[Event]:
        queue = list(reversed(waiting))
        try:
            while queue or self.running:
                while queue and len(self.running) < self.jobs:
                    spec = queue.pop()
                    self._start(spec)
                    yield Started(spec)
                for channel in wait(list(self.running), timeout=1.0):
                    assert isinstance(channel, Connection)
                    yield from self._hear(channel)
        finally:
            self._end()

    def _start(self, spec: Spec) -> None:
        here, there = self.context.Pipe(duplex=False)
        process = self.context.Process(target=work, args=(there, spec, self.store.root, self.settings), daemon=True)
        process.start()
        there.close()
        self.running[here] = (spec, process)

    def _hear(self, channel: Connection) -> Iterator[Event]:
        spec, process = self.running[channel]
        try:
            kind, content = channel.recv()
        except (EOFError, OSError):
            process.join()
            del self.running[channel]
            yield Failed(spec, f"its process ended with code {process.exitcode} before the run was over")
            return
        if kind == "progress":
            yield Advanced(spec, content)
            return
        process.join()
        del self.running[channel]
        if kind == "finished":
            yield Finished(spec, content)
        elif kind == "unwritable":
            raise StoreError(content)
        else:
            yield Failed(spec, *content)

    def _end(self) -> None:
        for _, process in self.running.values():
            process.terminate()
        for channel, (_, process) in self.running.items():
            process.join()
            channel.close()
        self.running = {}


def work(channel: Connection, spec: Spec, root: Path, settings: Settings) -> None:
    """One run in a process of its own."""
    import torch

    torch.set_num_threads(1)
    said = 0.0

    def tell(progress: Progress) -> None:
        nonlocal said
        if time.monotonic() - said >= PROGRESS_SECONDS or progress.accuracy is not None:
            said = time.monotonic()
            channel.send(("progress", progress))

    with suppress(BrokenPipeError, KeyboardInterrupt):
        try:
            channel.send(("finished", carry_out(spec, Store(root), settings, tell)))
        except StoreError as problem:
            channel.send(("unwritable", str(problem)))
        except RehearseError as problem:
            channel.send(("failed", (str(problem), "")))
        except Exception as problem:
            channel.send(("failed", (f"{type(problem).__name__}: {problem}", traceback.format_exc())))


def carry_out(
    spec: Spec, store: Store, settings: Settings, on_progress: Callable[[Progress], None] | None = None
) -> dict[str, Any]:
    """One run from its checkpoint to its result in the store: what every engine does."""
    try:
        result = execute(spec, store.folder(spec), settings, on_progress)
    except OSError as problem:
        if isinstance(problem, RehearseError):
            raise
        raise unwritable(store.root, problem) from problem
    store.put(spec, result)
    with suppress(FileNotFoundError):
        (store.folder(spec) / "checkpoint").unlink()
    return result
