"""What happens in a campaign, whichever engine carries it out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...errors import DataError, InvalidInput
from ..experiment import Progress, Settings
from ..setup import with_precision
from ..spec import Spec
from .store import Store, StoreError


@dataclass(frozen=True)
class Started:
    spec: Spec


@dataclass(frozen=True)
class Advanced:
    spec: Spec
    progress: Progress


@dataclass(frozen=True)
class Notice:
    """Something that a person should know, though the run goes on."""

    spec: Spec
    message: str


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
    damaged: bool = False
    """Whether it was not tried at all, for a file in the place of its result that is none."""
    interrupted: bool = False
    """Whether it was ended from outside, so that the same command may go on with it."""


Event = Started | Advanced | Notice | Finished | Failed
Run = Callable[[list[Spec]], Iterator[Event]]


def of_progress(spec: Spec, progress: Progress) -> Notice | Advanced:
    return Advanced(spec, progress) if progress.note is None else Notice(spec, progress.note)


def carry_out(specs: Sequence[Spec], store: Store, settings: Settings, jobs: int | None, run: Run) -> Iterator[Event]:
    """Make with an engine's ``run`` what has no result yet, each run once; yields what happens, as it happens.

    A failing run is reported and the others continue; a directory that cannot be written any more stops them all.
    """
    if jobs is not None and jobs < 1:
        raise InvalidInput(f"jobs is {jobs}; at least one run at a time is needed")
    waiting: list[Spec] = []
    resolved = {spec.key: spec for spec in (with_precision(spec, settings.device) for spec in specs)}
    for spec in resolved.values():
        try:
            done = store.get(spec)
        except DataError as problem:
            yield Failed(spec, str(problem), damaged=True)
            continue
        if done is not None:
            with suppress(OSError):
                store.tidy(spec)
            yield Finished(spec, done, again=True)
            continue
        if store.has_stale(spec):
            yield Notice(spec, "its result is stale (method or stream has a newer version); it is run again")
        if not waiting:
            store.check_writable()
        waiting.append(spec)
    yield from run(waiting)
    store.tidy_preparations(resolved.values())


def ended(spec: Spec, outcome: tuple[str, Any], queue: list[Spec], busy: set[str]) -> Iterator[Event]:
    """What a run came to, as `work.outcome` says it; one that another process is at waits for its turn.

    ``busy`` are the runs that another process was at, ``queue`` is taken from its end.
    """
    kind, content = outcome
    if kind == "unwritable":
        raise StoreError(content)
    if kind == "failed":
        yield Failed(spec, *content)
    elif kind == "finished":
        yield Finished(spec, content, again=spec.key in busy)  # then another process has made it
    else:
        queue.insert(0, spec)
        if spec.key not in busy:
            busy.add(spec.key)
            yield Notice(spec, f"{content}; its result is waited for")
