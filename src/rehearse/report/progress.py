"""What runs, how far it is, and when it will be done: drawn while a campaign goes on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..campaign.local import Advanced, Event, Failed, Finished, Started
from ..spec import Spec


def label(spec: Spec) -> str:
    return f"{spec.method} on {spec.stream}, seed {spec.seed}"


def draw(events: Iterable[Event], total: int, console: Console) -> tuple[list[Finished], list[Failed]]:
    """Follow the events to their end; a terminal gets live bars, anything else a line a run."""
    finished: list[Finished] = []
    failed: list[Failed] = []
    with _display(total, console) as display:
        for event in events:
            display.show(event)
            if isinstance(event, Finished):
                finished.append(event)
            elif isinstance(event, Failed):
                failed.append(event)
    return finished, failed


@contextmanager
def _display(total: int, console: Console) -> Iterator[_Bars | _Lines]:
    if not console.is_terminal:
        yield _Lines(total, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True) as progress:
        yield _Bars(total, progress)


class _Bars:
    def __init__(self, total: int, progress: Progress) -> None:
        self.progress = progress
        self.overall = progress.add_task("runs", total=total, note="")
        self.bars: dict[str, TaskID] = {}

    def show(self, event: Event) -> None:
        if isinstance(event, Started):
            self.bars[event.spec.key] = self.progress.add_task(label(event.spec), total=None, note="")
        elif isinstance(event, Advanced):
            at = event.progress
            note = "" if at.loss is None else f"loss {at.loss:.3f}"
            self.progress.update(self.bars[event.spec.key], completed=at.step, total=at.steps, note=note)
        else:
            if event.spec.key in self.bars:
                self.progress.remove_task(self.bars.pop(event.spec.key))
            self.progress.advance(self.overall)


class _Lines:
    def __init__(self, total: int, console: Console) -> None:
        self.total, self.console, self.done, self.begun = total, console, 0, time.monotonic()

    def show(self, event: Event) -> None:
        if isinstance(event, Finished | Failed):
            self.done += 1
            if isinstance(event, Failed):
                what = f"failed: {event.error}"
            else:
                accuracy = event.result["metrics"]["accuracy"]
                what = "there already" if event.again else f"{event.result['cost']['seconds']:.1f} s"
                what += "" if accuracy is None else f", accuracy {100 * accuracy:.1f} %"
            self.console.print(f"[{self.done}/{self.total}] {label(event.spec)}: {what}", highlight=False, markup=False)
