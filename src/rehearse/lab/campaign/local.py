"""The local engine: one process a run, one thread each, so many at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ..experiment import Progress, Settings, Stopped
from ..spec import Spec
from .events import Event, Failed, Started, carry_out, ended, of_progress
from .store import Store
from .work import outcome

PROGRESS_SECONDS = 0.5
PATIENCE_SECONDS = 30.0  # for a run that is asked to stop: it ends the step it is at, and writes its checkpoint


def run_all(
    specs: Sequence[Spec], store: Store, settings: Settings | None = None, jobs: int | None = None
) -> Iterator[Event]:
    """Make the runs that have no result yet; yields what happens, as it happens: see `carry_out`.

    Closing the iterator stops the processes at their next step: the same call resumes them from their checkpoints.
    """
    settings, jobs = settings or Settings(), cores() if jobs is None else jobs
    return carry_out(specs, store, settings, jobs, _Workers(store, settings, jobs).run)


def cores() -> int:
    """The cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not every system has it
        return os.cpu_count() or 1


class _Workers:
    def __init__(self, store: Store, settings: Settings, jobs: int) -> None:
        self.store, self.settings, self.jobs = store, settings, jobs
        # Torch is imported once, by the server that the runs' processes are forked from.
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["rehearse.lab.campaign.work"])
        self.running: dict[Connection, tuple[Spec, Any]] = {}
        self.busy: set[str] = set()

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
                    yield from self._hear(channel, queue)
        finally:
            self._end()

    def _start(self, spec: Spec) -> None:
        here, there = self.context.Pipe(duplex=False)
        process = self.context.Process(target=work, args=(there, spec, self.store.root, self.settings), daemon=True)
        process.start()
        there.close()
        self.running[here] = (spec, process)

    def _hear(self, channel: Connection, queue: list[Spec]) -> Iterator[Event]:
        spec, process = self.running[channel]
        try:
            said = channel.recv()
        except (EOFError, OSError):
            self._forget(channel)
            error = f"{_how_it_ended(process.exitcode)}; the same command resumes it from its checkpoint"
            yield Failed(spec, error, interrupted=True)
            return
        if said[0] == "progress":
            self.busy.discard(spec.key)  # the other process is gone, and this one makes the run
            yield of_progress(spec, said[1])
        else:
            self._forget(channel)
            yield from ended(spec, said, queue, self.busy)

    def _forget(self, channel: Connection) -> None:
        _, process = self.running.pop(channel)
        process.join()
        channel.close()

    def _end(self) -> None:
        """Stop what still runs: each writes its checkpoint, and who does not within reason is killed."""
        for _, process in self.running.values():
            process.terminate()
        deadline = time.monotonic() + PATIENCE_SECONDS
        try:
            while self.running and time.monotonic() < deadline:
                for channel in wait(list(self.running), timeout=0.5):
                    assert isinstance(channel, Connection)
                    with suppress(EOFError, OSError):
                        channel.recv()
                        continue  # what it had still to say is of no interest, but it must not wait to say it
                    self._forget(channel)
        finally:
            for channel, (_, process) in list(self.running.items()):
                process.kill()
                self._forget(channel)


def _how_it_ended(code: int | None) -> str:
    if code is not None and code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process ended with code {code} before the run was over"


def work(channel: Connection, spec: Spec, root: Path, settings: Settings) -> None:
    """One run in a process of its own."""
    import torch

    stop = False

    def ask_to_stop(*_: Any) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, ask_to_stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it asks its processes to stop
    torch.set_num_threads(1)
    said = 0.0

    def tell(progress: Progress) -> None:
        nonlocal said
        if stop:
            raise Stopped
        if time.monotonic() - said >= PROGRESS_SECONDS or progress.evaluated or progress.note is not None:
            said = time.monotonic()
            try:
                channel.send(("progress", progress))
            except BrokenPipeError:  # the parent is gone
                raise Stopped from None

    with suppress(BrokenPipeError, Stopped):
        channel.send(outcome(spec, Store(root), settings, tell))
