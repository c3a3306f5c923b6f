"""A process of its own, in which subjects are made and timed.

The library lets the C library keep freed memory, and that holds for the whole process: beside it the reference steps
would profit too, by a tenth to a third of their time. Other versions and other environment variables also need one.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import subprocess
import sys
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SOURCE = HERE.parent / "src"
Step = Callable[[], object]


class Timed(ABC):
    """A subject that times its steps itself."""

    @abstractmethod
    def seconds(self, steps: int) -> float:
        """Take so many steps and return their CPU seconds."""


def cpu_seconds(subject: Step | Timed, steps: int) -> float:
    """Take so many steps and return their CPU seconds."""
    if isinstance(subject, Timed):
        return subject.seconds(steps)
    started = time.thread_time()
    for _ in range(steps):
        subject()
    return time.thread_time() - started


class Elsewhere:
    """Another process, with one thread; a context manager."""

    def __init__(
        self, source: Path = SOURCE, *, without: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        """Start the process.

        Args:
            source: Where it imports ``rehearse`` from.
            without: Packages that it cannot import.
            environment: Variables in addition to this process's.
        """
        self._connection, there = multiprocessing.Pipe()
        paths = os.pathsep.join(map(str, (source, HERE)))
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **(environment or {}), "PYTHONPATH": paths}
        command = [sys.executable, __file__, str(there.fileno()), *without]
        with there:
            self._process = subprocess.Popen(command, env=variables, pass_fds=[there.fileno()])

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *exception: object) -> None:
        self._connection.close()
        self._process.wait()

    def make(self, function: Callable[..., Step | Timed], *arguments: Any, **keywords: Any) -> Timed:
        """Return the subject that a function makes there; it stays there."""
        return _Remote(self, self._ask("make", _reference(function), arguments, keywords))

    def call(self, function: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Return what a function returns there."""
        return self._ask("call", _reference(function), arguments, keywords)

    def _ask(self, *request: Any) -> Any:
        self._connection.send(request)
        answer = self._connection.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer


class _Remote(Timed):
    """A subject in another process, known by its number there."""

    def __init__(self, process: Elsewhere, number: int) -> None:
        self._process, self._number = process, number

    def seconds(self, steps: int) -> float:
        return float(self._process._ask("time", None, (self._number, steps), {}))


def _reference(function: Callable[..., Any]) -> tuple[str, str]:
    """Return the module and the name of a function; a script is imported by the name of its file."""
    module = function.__module__
    return Path(sys.argv[0]).stem if module == "__main__" else module, function.__qualname__


def _serve(connection: Connection) -> None:
    import torch

    torch.set_num_threads(1)
    subjects: list[Any] = []
    while True:
        try:
            verb, function, arguments, keywords = connection.recv()
            if verb == "time":
                connection.send(cpu_seconds(subjects[arguments[0]], arguments[1]))
                continue
            module, name = function
            found = getattr(importlib.import_module(module), name)(*arguments, **keywords)
            if verb == "make":
                subjects.append(found)
                found = len(subjects) - 1
            connection.send(found)
        except EOFError:  # the other end is closed
            return
        except Exception:
            connection.send(RuntimeError(traceback.format_exc()))


if __name__ == "__main__":
    sys.modules.update(dict.fromkeys(sys.argv[2:]))  # a module that is None cannot be imported
    sys.modules["elsewhere"] = sys.modules["__main__"]  # subjects import `Timed` from here
    _serve(Connection(int(sys.argv[1])))
