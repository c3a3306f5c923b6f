"""Process groups on this machine: children forked from a parent that has torch already."""

from __future__ import annotations

import datetime
import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

SECONDS = 20  # after which a child that waits gives up


class Ended(NamedTuple):
    """How a child ended: what it returned, or the error it raised, or the signal that killed it."""

    value: Any = None
    error: str | None = None
    kind: str | None = None
    signal: int | None = None


def start(call: Callable[..., Any], count: int, *arguments: Any, timeout: float = SECONDS) -> list[tuple[int, int]]:
    """Fork the ranks of a process group; each calls ``call(rank, *arguments)``. Returns their ids and pipes."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    folder, children = tempfile.mkdtemp(), []
    for rank in range(count):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            signal.alarm(600)
            torch.set_num_threads(1)
            try:
                store = dist.FileStore(f"{folder}/store", count)
                limit = datetime.timedelta(seconds=timeout)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=limit)
                ended = Ended(call(rank, *arguments))
            except BaseException as problem:
                if os.environ.get("SHOW"):
                    traceback.print_exc()
                ended = Ended(error=str(problem), kind=type(problem).__name__)
            with open(writer, "wb") as pipe:
                pickle.dump(ended, pipe)
            os._exit(0)
        os.close(writer)
        children.append((child, reader))
    return children


def ended(children: list[tuple[int, int]]) -> list[Ended]:
    """Wait for all of them."""
    found = []
    for child, reader in children:
        with open(reader, "rb") as pipe:
            said = pipe.read()
        status = os.waitpid(child, 0)[1]
        found.append(pickle.loads(said) if said else Ended(signal=os.WTERMSIG(status)))
    return found


def in_ranks(call: Callable[..., Any], count: int, *arguments: Any) -> list[Any]:
    """Return what each rank's call returned."""
    found = ended(start(call, count, *arguments))
    for rank, one in enumerate(found):
        assert (one.error, one.signal) == (None, None), f"rank {rank}: {one}"
    return [one.value for one in found]
