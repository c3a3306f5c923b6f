"""What software and machine made a result."""

from __future__ import annotations

import platform
import resource
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from ..network.accelerate import kernels


@cache
def environment() -> dict[str, Any]:
    """Versions, processor and commit; small, and free of paths and host names."""
    from .. import __version__

    return {
        "rehearse": __version__,
        "commit": COMMIT,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "system": platform.system(),
        "processor": processor(),
        "processor_model": processor_model(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "kernels": "own" if torch.get_num_threads() == 1 and kernels() is not None else "torch",
    }


def processor() -> str:
    """The processor's own name, as far as the system tells it."""
    return _told("model name") or platform.processor() or platform.machine()


def processor_model() -> str | None:
    """Its family and model: processors of one name may differ by half in speed, though they round alike."""
    family, model = _told("cpu family"), _told("model")
    return f"family {family}, model {model}" if family and model else None


def _told(what: str) -> str | None:
    """What the system tells of its first processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return None
    entries = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in entries if name.strip() == what), None)


def peak_memory() -> int:
    """The most resident memory that this process has had, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _commit() -> str | None:
    """The commit of a checkout, marked where it has been changed since; None for an installed package."""
    here = Path(__file__).resolve()
    try:
        _git(here, "ls-files", "--error-unmatch", here.name)  # or it only lies within somebody's checkout
        changed = _git(here, "--no-optional-locks", "status", "--porcelain", "..")  # of the library too
        return _git(here, "rev-parse", "--short", "HEAD") + ("-changed" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(here: Path, *words: str) -> str:
    command = ["git", "-C", str(here.parent), *words]  # options of git itself may come first
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()


COMMIT: Final = _commit()  # of the code as it was loaded: a campaign may outlive the next commit
