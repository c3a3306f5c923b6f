"""A run's metrics for TensorBoard: event files under ``OUT/<key>/tensorboard``, read off its metrics.jsonl.

The run itself knows nothing of it: its lines are followed from outside, as they reach the disk, and the events hold
what the lines hold. The records are written with tensorboard's own writer; tensorflow is not needed.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from ...errors import MissingExtra
from ..campaign.events import Event, Failed, Finished, Started
from ..campaign.store import Store

SCALARS = ("incoming_loss", "replayed_loss", "interference")
NOT_SCALARS = {"step", "task", "evaluated_after_task", "replayed", "scores"}


def log_events(events: Iterator[Event], store: Store) -> Iterator[Event]:
    """The events of a campaign unchanged; on the way, every run's metrics go to TensorBoard as they come."""
    if importlib.util.find_spec("tensorboard") is None:
        raise MissingExtra("tensorboard", "tensorboard")
    return _log_events(events, store)


def _log_events(events: Iterator[Event], store: Store) -> Iterator[Event]:
    followed: dict[str, Follower] = {}
    with closing(events):  # type: ignore[type-var]
        for event in events:
            key = event.spec.key
            if isinstance(event, Started) or key not in followed:
                followed[key] = Follower(store.folder(event.spec))
            followed[key].catch_up()
            if isinstance(event, Finished | Failed):
                del followed[key]
            yield event


class Follower:
    """Turns the lines of a run's metrics.jsonl into events, each line once.

    A run that is taken up again cuts its metrics back to its checkpoint: where the file has become shorter than what
    was read of it, the events are written anew from its beginning.
    """

    def __init__(self, folder: Path) -> None:
        self.metrics, self.events = folder / "metrics.jsonl", folder / "tensorboard"
        self._start_over()

    def _start_over(self) -> None:
        shutil.rmtree(self.events, ignore_errors=True)
        self.read = 0

    def catch_up(self) -> None:
        """Write what has come since the last call; a line that is not whole yet waits for the next one."""
        if not self.metrics.exists():
            return
        if self.metrics.stat().st_size < self.read:
            self._start_over()
        with open(self.metrics, "rb") as file:
            file.seek(self.read)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        if whole:
            write_scalars(self.events, [json.loads(line) for line in whole.splitlines()])
            self.read += len(whole)


def write_scalars(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Append the numbers of these lines to the event file in ``folder``."""
    from tensorboard.compat.proto.event_pb2 import Event as Record
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "events.out.tfevents.rehearse"
    now = time.time()
    fresh = not path.exists()
    with open(path, "ab") as file:
        writer = RecordWriter(file)
        if fresh:
            writer.write(Record(wall_time=now, file_version="brain.Event:2").SerializeToString())
        for line in lines:
            values = [Summary.Value(tag=tag, simple_value=number) for tag, number in scalars(line).items()]
            record = Record(wall_time=now, step=line["step"], summary=Summary(value=values))
            writer.write(record.SerializeToString())


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """tag -> number: the losses of a step, or after a task the accuracy on each task and on those seen so far."""
    if "evaluated_after_task" not in line:
        return {name: line[name] for name in SCALARS if line.get(name) is not None}
    seen = line["evaluated_after_task"] + 1
    found: dict[str, float] = {}
    for name, value in line.items():
        if name in NOT_SCALARS or value is None:
            continue
        if not isinstance(value, list):
            found[f"after_task/{name}"] = value
            continue
        if all(entry is not None for entry in value[:seen]):
            found[f"accuracy_{name}/seen"] = sum(value[:seen]) / seen
        found |= {f"accuracy_{name}/task_{place + 1}": entry for place, entry in enumerate(value) if entry is not None}
    return found
