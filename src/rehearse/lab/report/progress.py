"""What runs, how far it is, and when it will be done: drawn while a campaign goes on."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from ..campaign.events import Advanced, Event, Failed, Finished, Notice, Started
from ..spec import Spec

Place = tuple[str, str, str, int]  # method, stream, group, seed


def label(spec: Spec) -> str:
    return f"{spec.method} on {spec.stream}, seed {spec.seed}"


def draw(events: Iterator[Event], specs: Sequence[Spec], console: Console) -> tuple[list[Finished], list[Failed]]:
    """Follow the events of a campaign to their end; a terminal gets live bars, anything else a line a run."""
    finished: list[Finished] = []
    failed: list[Failed] = []
    left = TimeLeft(specs)
    with closing(events), _display(len(specs), left, console) as display:  # type: ignore[type-var]
        for event in events:
            left.note(event)
            display.show(event)
            if isinstance(event, Finished):
                finished.append(event)
            elif isinstance(event, Failed):
                failed.append(event)
    return finished, failed


class TimeLeft:
    """How long the campaign still takes: what comes costs what its like has cost, so many at a time."""

    def __init__(self, specs: Sequence[Spec]) -> None:
        self.waiting = {(spec.method, spec.stream, spec.group, spec.seed): None for spec in specs}
        self.running: dict[Place, tuple[float, float, float]] = {}
        """where -> when it began, how far it was when first heard of, how far it is"""
        self.took: dict[tuple[str, ...], list[float]] = defaultdict(list)
        self.at_a_time = 1

    def note(self, event: Event) -> None:
        spec = event.spec
        place = (spec.method, spec.stream, spec.group, spec.seed)
        if isinstance(event, Started):
            self.waiting.pop(place, None)
            self.running[place] = (time.monotonic(), -1.0, 0.0)
            self.at_a_time = max(self.at_a_time, len(self.running))
        elif isinstance(event, Advanced) and place in self.running and event.progress.steps:
            began, first, _ = self.running[place]
            share = event.progress.step / event.progress.steps
            self.running[place] = (began, share if first < 0 else first, share)
        elif isinstance(event, Finished | Failed):
            self.waiting.pop(place, None)
            began, first, _ = self.running.pop(place, (0.0, 0.0, 0.0))
            if isinstance(event, Finished) and not event.again and began and first < 0.5:
                seconds = (time.monotonic() - began) / (1 - max(first, 0.0))
                for like in (place[:3], place[:2], ()):
                    self.took[like].append(seconds)

    def seconds(self) -> float | None:
        """None as long as nothing can be said."""
        whole = {place: self._whole(place) for place in [*self.running, *self.waiting]}
        if any(seconds is None for seconds in whole.values()):
            return None
        work = sum(whole[place] or 0.0 for place in self.waiting)
        remaining = [(whole[place] or 0.0) * (1 - share) for place, (_, _, share) in self.running.items()]
        return max((work + sum(remaining)) / self.at_a_time, max(remaining, default=0.0))

    def _whole(self, place: Place) -> float | None:
        """The seconds of one run: by its own speed, or that of the likest that is known."""
        own = self._by_speed(place)
        if own is not None:
            return own
        for like in (place[:3], place[:2], ()):
            if like in self.took:
                return fmean(self.took[like])
        others = [seconds for seconds in map(self._by_speed, self.running) if seconds is not None]
        return fmean(others) if others else None

    def _by_speed(self, place: Place) -> float | None:
        began, first, share = self.running.get(place, (0.0, 0.0, 0.0))
        return (time.monotonic() - began) / (share - first) if share > first >= 0 else None


def duration(seconds: float | None) -> str:
    """In words of one unit: 40 s, 12 min, 3.5 h."""
    if seconds is None:
        return "–"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


@contextmanager
def _display(total: int, left: TimeLeft, console: Console) -> Iterator[_Bars | _Lines]:
    if not console.is_terminal:
        yield _Lines(total, left, console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=console, transient=True) as progress:
        yield _Bars(total, left, progress)


class _Bars:
    def __init__(self, total: int, left: TimeLeft, progress: Progress) -> None:
        self.progress, self.left = progress, left
        self.overall = progress.add_task("runs", total=total, note="")
        self.bars: dict[str, TaskID] = {}

    def show(self, event: Event) -> None:
        if isinstance(event, Notice):
            self.progress.console.print(f"{label(event.spec)}: {event.message}", highlight=False, markup=False)
        elif isinstance(event, Started) and event.spec.key in self.bars:
            pass  # it was put off, and is taken up again
        elif isinstance(event, Started):
            self.bars[event.spec.key] = self.progress.add_task(label(event.spec), total=None, note="")
        elif isinstance(event, Advanced):
            at = event.progress
            note = "" if at.loss is None else f"loss {at.loss:.3f}"
            if at.prepared is not None:
                note = f"preparing the next task: {at.prepared[0]:,} of {at.prepared[1]:,}"
            elif at.waiting:
                note = "waiting for another run that prepares the same task"
            self.progress.update(self.bars[event.spec.key], completed=at.step, total=at.steps, note=note)
        else:
            if event.spec.key in self.bars:
                self.progress.remove_task(self.bars.pop(event.spec.key))
            self.progress.advance(self.overall)
        self.progress.update(self.overall, note=f"all: {duration(self.left.seconds())} left")


class _Lines:
    def __init__(self, total: int, left: TimeLeft, console: Console) -> None:
        self.total, self.left, self.console, self.done = total, left, console, 0

    def show(self, event: Event) -> None:
        if isinstance(event, Notice):
            self._say(f"{label(event.spec)}: {event.message}")
        elif isinstance(event, Finished | Failed):
            self.done += 1
            if isinstance(event, Failed):
                what = f"failed: {event.error}"
            else:
                accuracy = event.result["metrics"]["accuracy"]
                what = "result found" if event.again else f"{event.result['cost']['seconds']:.1f} s"
                what += "" if accuracy is None else f", accuracy {100 * accuracy:.1f} %"
            still = self.left.seconds()
            what += f"; {duration(still)} left" if still and self.done < self.total else ""
            self._say(f"[{self.done}/{self.total}] {label(event.spec)}: {what}")

    def _say(self, sentence: str) -> None:
        self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)
