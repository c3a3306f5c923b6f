"""Where results live: ``OUT/<key>.json``, written last and whole, and ``OUT/<key>/`` with what the run left.

A spec with a result is never run again. When the version of its method or stream has moved on, the result stays on
disk under its old key and is *stale*: shown as such, never taken for the new one.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...checks import is_number
from ...errors import DataError, RehearseError
from ...files import make_folder, remove, write_whole
from ...metrics import average_accuracy, forgetting
from ..limits import read_plain
from ..methods import METHODS, preparation_key
from ..spec import Spec
from ..streams import STREAMS
from ..within import check_within, over_time

OnDamaged = Callable[[DataError], None]
KEY = re.compile(r"[0-9a-f]{16}")


class StoreError(RehearseError, OSError):
    """The results' directory cannot be written."""


@dataclass(frozen=True)
class Store:
    """A directory of results."""

    root: Path

    def folder(self, spec: Spec) -> Path:
        return self.root / spec.key

    def path(self, spec: Spec) -> Path:
        return self.root / f"{spec.key}.json"

    def has_stale(self, spec: Spec) -> bool:
        """Whether there is a result under an earlier version of its method or stream."""
        return any(self.path(older).exists() for older in older_versions(spec))

    def get(self, spec: Spec) -> dict[str, Any] | None:
        """The result of a spec, or None; a file that is no result is an error, not a missing one."""
        path = self.path(spec)
        return read_result(path) if path.exists() else None

    def put(self, spec: Spec, result: dict[str, Any]) -> None:
        """Write a result whole or not at all."""
        text = json.dumps(result, indent=1, sort_keys=True, allow_nan=False) + "\n"
        try:
            make_folder(self.root)
            write_whole(self.path(spec), text)
        except OSError as problem:
            raise unwritable(self.root, problem) from problem

    def tidy(self, spec: Spec) -> None:
        """A run that has its result needs no checkpoint any more; one that was killed between the two left it."""
        remove(self.folder(spec) / "checkpoint")

    @property
    def preparations(self) -> Path:
        """Where runs leave what they prepare before a task, for others that would prepare the same."""
        return self.root / "prepared"

    def tidy_preparations(self, specs: Iterable[Spec]) -> None:
        """Where all of these runs that share a preparation have their results, it is needed no more."""
        keys: dict[str, bool] = {}
        for spec in specs:
            key = preparation_key(spec)
            if key is not None:
                keys[key] = keys.get(key, True) and self.path(spec).exists()
        for key, done in keys.items():
            if done:
                shutil.rmtree(self.preparations / key, ignore_errors=True)
        with contextlib.suppress(OSError):  # it is not there, or not empty
            self.preparations.rmdir()

    def check_writable(self) -> None:
        """Refuse a directory that cannot be written before anything is computed for it."""
        probe = self.root / f".probe.{os.getpid()}"
        try:
            make_folder(self.root)
            write_whole(probe, "\0" * 4096)
            probe.unlink()
        except OSError as problem:
            raise unwritable(self.root, problem) from problem

    def results(self, on_damaged: OnDamaged | None = None) -> Iterator[dict[str, Any]]:
        """Yield every result; a damaged file goes to ``on_damaged`` and is left out, or is refused without it."""
        for path in sorted(self.root.glob("*.json")):
            if KEY.fullmatch(path.stem):
                try:
                    yield read_result(path)
                except DataError as problem:
                    if on_damaged is None:
                        raise
                    on_damaged(problem)


def results_in(roots: Iterable[Path], on_damaged: OnDamaged | None = None) -> Iterator[dict[str, Any]]:
    """Every result of several directories, each key once; the first directory that has it counts."""
    seen: set[str] = set()
    for root in roots:
        for result in Store(root).results(on_damaged):
            if result["key"] not in seen:
                seen.add(result["key"])
                yield result


def read_result(path: Path) -> dict[str, Any]:
    """The result in a file; whatever is computed from results is checked here, so that the rest may rely on it."""
    try:
        result = read_plain(path)
        spec = Spec.from_dict(result["spec"])
        _check_numbers(result, spec)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        why = problem if isinstance(problem, OSError | ValueError) else "parts of it are missing, or of another kind"
        raise DataError(f"{path} is no result of a run ({why}); move it away and run again") from problem
    if spec.key != path.stem or result.get("key") != spec.key:
        raise DataError(f"{path} holds the result of {spec.key}; it was renamed or edited; move it away and run again")
    return dict(result)


def _check_numbers(result: Mapping[str, Any], spec: Spec) -> None:
    """Metrics, cost and accuracies are numbers of the kind that they should be; the rest is tables."""
    within = result.get("within", [])
    check_within(within, spec, len(result["matrices"]["test"]))
    if spec.every is not None and not within:
        raise DataError("it has no evaluations within tasks, for which its spec asks")
    _check_judged(result, within)
    for treated in result.get("treatments", {}).values():
        _check_judged(treated)
    cost, environment = result["cost"], {**result["environment"]}
    undefined = [name for name in ("steps_per_second", "forward_passes") if cost[name] is None]
    known = [value for name, value in cost.items() if name not in undefined]
    if not {"seconds", "cpu_seconds"} <= cost.keys() or not all(is_number(value) and value >= 0 for value in known):
        raise DataError("its cost is no number")
    places = [*environment.pop("earlier", []), environment]
    measured = [value for table in result.get("extra", []) for value in table.values()]
    nested = any(isinstance(value, dict | list) for place in places for value in place.values())
    numbers = all(value is None or is_number(value) for value in measured)
    if nested or not numbers or not isinstance(result.get("report", {}), dict) or "seed" not in result["spec"]:
        raise DataError(
            "its seed, its environment, its report or what it measured of itself is missing or another kind"
        )


def _check_judged(judged: Mapping[str, Any], within: Sequence[Mapping[str, Any]] = ()) -> None:
    """Of the run itself, with its evaluations within tasks, or of one of its treatments."""
    metrics, matrix = judged["metrics"], judged["matrices"]["test"]
    numbers = [*metrics.values(), *(entry for row in matrix for entry in row)]
    square = len(matrix) > 0 and all(len(row) == len(matrix) for row in matrix)
    if not square or not all(value is None or is_number(value) for value in numbers):
        raise DataError("its accuracy matrix or metrics are no numbers")
    if not all(entry is None or 0 <= entry <= 1 for row in matrix for entry in row):
        raise DataError("an accuracy is a fraction")
    if "forgetting" not in metrics:
        raise DataError("it does not tell how much was forgotten")
    known = np.array(matrix, dtype=np.float64)  # None becomes nan
    told = {"accuracy": average_accuracy(known), "forgetting": forgetting(known), **over_time(within)}
    for name, value in told.items():
        if metrics[name] is None or math.isnan(value):
            consistent = metrics[name] is None and math.isnan(value)
        else:
            consistent = math.isclose(metrics[name], value, abs_tol=1e-9)
        if not consistent:
            raise DataError(f"its {name} is not that of its accuracy matrix")


def is_stale(spec: Spec) -> bool:
    """Whether the method or the stream of a spec has another version by now, or is gone."""
    method, stream = METHODS.get(spec.method), STREAMS.get(spec.stream)
    if method is None or stream is None:
        return True
    return (method.version, stream.version) != (spec.method_version, spec.stream_version)


def older_versions(spec: Spec) -> Iterator[Spec]:
    """The same run under earlier versions of its method or stream."""
    for method in range(1, spec.method_version + 1):
        for stream in range(1, spec.stream_version + 1):
            if (method, stream) != (spec.method_version, spec.stream_version):
                yield replace(spec, method_version=method, stream_version=stream)


def unwritable(root: Path, problem: OSError) -> StoreError:
    reason = {
        errno.ENOSPC: "the disk is full: make room",
        errno.EDQUOT: "the disk quota is used up: make room",
        errno.EROFS: "the file system is read-only: choose another --out",
        errno.EACCES: "there is no permission to write: choose another --out",
        errno.EEXIST: "it is a file: choose another --out",
        errno.ENOTDIR: "a file is in its way: choose another --out",
    }.get(problem.errno or 0, str(problem))
    return StoreError(
        f"cannot write to {root}: {reason}. Earlier results are untouched, and a command with the same --out resumes."
    )
