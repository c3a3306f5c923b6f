"""What all tests share: one thread, so that they are as fast on a busy machine and the same everywhere."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture
def pipe(tmp_path: Path) -> Iterator[Path]:
    """A named pipe, which is empty for whoever reads it: a test that reads it fails, and does not wait for ever."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with contextlib.closing(_Writer(path)):
        yield path


class _Writer(threading.Thread):
    """Waits for a reader of a pipe, and has nothing to say."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path = path
        self.start()

    def run(self) -> None:
        self.path.write_bytes(b"")

    def close(self) -> None:
        while self.is_alive():
            os.close(os.open(self.path, os.O_RDONLY | os.O_NONBLOCK))
            time.sleep(1e-3)
