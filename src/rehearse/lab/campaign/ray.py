"""The cluster engine: the same runs as Ray tasks, one core each; extra ``rehearse-torch[ray]``.

A run writes into the same directory as it would locally, which the machines of a cluster share, so that a run whose
worker or node dies resumes from its checkpoint elsewhere. Where they do not share it, results come back through Ray
all the same, and a run that is retried on another node starts over.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import InvalidInput
from .. import extensions
from ..experiment import Progress, Settings
from ..extras import needs
from ..spec import Spec
from .events import Event, Failed, Started, carry_out, ended, of_progress
from .store import Store
from .work import outcome

ALLOW_CLUSTER = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
AUTH_MODE = "RAY_AUTH_MODE"
IF_REFUSED = f"If the cluster asks for a token: copy the head's ~/.ray/auth_token here, and export {AUTH_MODE}=token"
PROGRESS_SECONDS = 0.5
RETRIES = 5  # of a run whose worker or node died; a run that fails by itself is not tried again
WAITING = 2  # tasks in Ray's hands for each core: enough to be busy, and for an autoscaler to see that more is needed


def run_all(
    specs: Sequence[Spec],
    store: Store,
    settings: Settings | None = None,
    jobs: int | None = None,
    address: str | None = None,
) -> Iterator[Event]:
    """Carry out on a Ray cluster what has no result yet; yields what happens, as the local engine does.

    ``address`` is the cluster's; without one it is taken from RAY_ADDRESS, or a Ray of this machine is started for
    the time of the campaign. ``jobs`` bounds the runs at a time; by default the cores of the cluster do.
    """
    if address or os.environ.get("RAY_ADDRESS"):
        _use_token()
    with needs("ray", "ray"):
        import ray
    chosen = settings or Settings()

    def run(waiting: list[Spec]) -> Iterator[Event]:
        if waiting:
            with _connected(ray, address, jobs):
                yield from _Cluster(ray, Store(store.root.resolve()), chosen, jobs).run(waiting)

    return carry_out(specs, store, chosen, jobs, run)


def _use_token() -> None:
    """Send the token of this machine to a running cluster, unless RAY_AUTH_MODE says otherwise.

    A Ray that is started on this machine creates the token, and ``ray start --head`` then demands it. Ray reads the
    variable when it is imported, and sets it itself only where it starts a cluster.
    """
    if AUTH_MODE not in os.environ and (Path.home() / ".ray" / "auth_token").exists():
        os.environ[AUTH_MODE] = "token"


@contextlib.contextmanager
def _connected(ray: Any, address: str | None, jobs: int | None) -> Iterator[None]:
    """Use the Ray that is there, and leave it there; one that was started for us ends with us."""
    if ray.is_initialized():
        yield
        return
    elsewhere = address or os.environ.get("RAY_ADDRESS")
    own = {} if elsewhere else {"num_cpus": jobs, "include_dashboard": False}
    try:
        with contextlib.nullcontext() if elsewhere else _on_loopback(ray):
            ray.init(address=elsewhere or "local", log_to_driver=False, logging_level="ERROR", **own)
    except (ConnectionError, ValueError, ray.exceptions.RayError) as problem:
        raise InvalidInput(f"cannot reach a Ray cluster at {elsewhere}: {problem}. {IF_REFUSED}") from problem
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _on_loopback(ray: Any) -> Iterator[None]:
    """Let a Ray that is started here listen on 127.0.0.1 alone: whoever reaches its ports can run code.

    Ray replaces a loopback address that it is given by that of the network, unless it starts without clusters, as it
    does on Windows and macOS. The processes that it starts read the variable, this one has read it already.
    """
    constants = ray._private.ray_constants
    before = os.environ.get(ALLOW_CLUSTER), constants.ENABLE_RAY_CLUSTER
    os.environ[ALLOW_CLUSTER], constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before[1]
        os.environ.pop(ALLOW_CLUSTER)
        os.environ |= {} if before[0] is None else {ALLOW_CLUSTER: before[0]}


class Board:
    """Where the runs say how far they are; an actor of its own, so that a dead worker takes nothing with it."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Progress | None]] = []

    def tell(self, key: str, progress: Progress | None) -> None:
        self.said.append((key, progress))

    def take(self) -> list[tuple[str, Progress | None]]:
        said, self.said = self.said, []
        return said


class _Cluster:
    def __init__(self, ray: Any, store: Store, settings: Settings, jobs: int | None) -> None:
        self.ray, self.store, self.settings, self.jobs = ray, store, settings, jobs
        self.board = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(Board).remote()
        variables = {name: os.environ[name] for name in ("REHEARSE_DATA", extensions.FILES) if os.environ.get(name)}
        self.task = ray.remote(num_cpus=1, max_retries=RETRIES)(work).options(
            runtime_env={"env_vars": variables} if variables else {}
        )
        self.given: dict[Any, Spec] = {}
        self.started: set[str] = set()
        self.busy: set[str] = set()

    def run(self, waiting: list[Spec]) -> Iterator[Event]:
        queue = list(reversed(waiting))
        try:
            while queue or self.given:
                while queue and len(self.given) < self._room():
                    spec = queue.pop()
                    self.given[self.task.remote(self.board, spec, self.store.root, self.settings)] = spec
                done, _ = self.ray.wait(list(self.given), timeout=PROGRESS_SECONDS)
                yield from self._heard()
                for task in done:
                    yield from self._ended(task, queue)
        finally:
            for task in self.given:
                self.ray.cancel(task, force=True)

    def _room(self) -> int:
        return self.jobs or max(1, int(WAITING * self.ray.cluster_resources().get("CPU", 1)))

    def _heard(self) -> Iterator[Event]:
        specs = {spec.key: spec for spec in self.given.values()}
        try:
            said = self.ray.get(self.board.take.remote())
        except self.ray.exceptions.RayActorError as problem:
            first = f"the Ray cluster starts no actor: {str(problem).strip().splitlines()[0]}"
            raise InvalidInput(f"{first} If it runs without a token: export {AUTH_MODE}=disabled") from problem
        for key, progress in said:
            if key in specs:
                if key not in self.started:
                    self.started.add(key)
                    yield Started(specs[key])
                if progress is not None:
                    self.busy.discard(key)  # the other process is gone, and this one makes the run
                    yield of_progress(specs[key], progress)

    def _ended(self, task: Any, queue: list[Spec]) -> Iterator[Event]:
        spec = self.given.pop(task)
        try:
            said = self.ray.get(task)
        except self.ray.exceptions.RayTaskError as problem:  # raised where a run does not catch it: no package there?
            last = str(problem).strip().splitlines()[-1]
            yield Failed(spec, f"its worker could not begin: {last}", str(problem))
            return
        except self.ray.exceptions.RayError as problem:
            first = str(problem).strip().splitlines()[0]
            error = f"its worker or node died {RETRIES + 1} times ({first}); the same command resumes it"
            yield Failed(spec, error, interrupted=True)
            return
        if said[0] == "finished" and self.store.get(spec) is None:  # made where the directory is not ours
            self.store.put(spec, said[1])
        yield from ended(spec, said, queue, self.busy)


def work(board: Any, spec: Spec, root: Path, settings: Settings) -> tuple[str, Any]:
    """One run as a Ray task: what it returns is final, what it raises Ray tries again."""
    import torch

    torch.set_num_threads(1)
    board.tell.remote(spec.key, None)
    said = 0.0

    def tell(progress: Progress) -> None:
        nonlocal said
        if time.monotonic() - said >= PROGRESS_SECONDS or progress.note is not None:
            said = time.monotonic()
            board.tell.remote(spec.key, progress)

    return outcome(spec, Store(root), settings, tell)
