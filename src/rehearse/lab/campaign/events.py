"""What happens in a campaign, whichever engine carries it out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...errors import DataError
from ..experiment import Progress, Settings
from ..setup import with_precision
from ..spec import Spec
from .store import Store


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


def of_progress(spec: Spec, progress: Progress) -> Notice | Advanced:
    return Advanced(spec, progress) if progress.note is None else Notice(spec, progress.note)


def defer(spec: Spec, who: str, queue: list[Spec], told: set[str]) -> Iterator[Notice]:
    """A run that another process is at comes after all the others of the queue, which is taken from its end."""
    queue.insert(0, spec)
    if spec.key not in told:
        told.add(spec.key)
        yield Notice(spec, f"{who}; its result is waited for")


def look_up(specs: Sequence[Spec], store: Store, settings: Settings, waiting: list[Spec]) -> Iterator[Event]:
    """Tell which runs have a result already, or a stale one; those without go to ``waiting``, each once."""
    resolved = (with_precision(spec, settings.device) for spec in specs)
    for spec in {spec.key: spec for spec in resolved}.values():
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
        if store.status(spec) == "stale":
            yield Notice(spec, "its result is stale (method or stream has a newer version); it is run again")
        if not waiting:
            store.check_writable()
        waiting.append(spec)
