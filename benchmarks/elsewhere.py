"""A subject in a process of its own, which takes its turns there.

The library lets the C library keep freed memory, and that holds for the whole process: next to it the textbook's steps
would profit too, by a tenth to a third of their time. They are measured where the library is not at work.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch


class Elsewhere:
    """What ``make(*arguments, **keywords)`` gives, in another process; it says how long it took over what is asked."""

    def __init__(self, make: Callable[..., Any], *arguments: Any, **keywords: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        context.Process(target=_serve, args=(there, make, arguments, keywords), daemon=True).start()

    def seconds(self, calls: Sequence[tuple[Any, ...]], method: str = "__call__") -> float:
        """CPU seconds of these calls, one after the other."""
        self._here.send((method, calls))
        answer = self._here.recv()
        if isinstance(answer, BaseException):
            raise answer
        return float(answer)


def _serve(connection: Connection, make: Callable[..., Any], arguments: Any, keywords: Any) -> None:
    torch.set_num_threads(1)
    try:
        subject = make(*arguments, **keywords)
        while True:
            method, calls = connection.recv()
            ask = getattr(subject, method)
            started = time.thread_time()
            for call in calls:
                ask(*call)
            connection.send(time.thread_time() - started)
    except EOFError:  # nobody asks any more
        return
    except Exception as problem:
        connection.send(problem)
