"""What `fast/` offers; the only module that imports it. Without that folder, or with ``REHEARSE_FAST=0``, nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch import nn


def offers(table: str, model: nn.Module) -> list[Callable[..., Any]]:
    """Return what may offer something faster for a kind of model.

    Args:
        table: ``ENGINES`` or ``DESCENTS`` of `fast`.
        model: Its type decides.
    """
    return [offer for kind, offer in getattr(_fast(), table, {}).items() if isinstance(model, kind)]


def kernels() -> Callable[[nn.Module], None] | None:
    """Return what lets a private copy of a model use compiled kernels, if they are installed for this processor."""
    found = _fast()
    return None if found is None else found.kernels()


def _fast() -> Any:
    if os.environ.get("REHEARSE_FAST") == "0":
        return None
    try:
        import rehearse.fast as fast
    except ModuleNotFoundError as problem:
        if problem.name != "rehearse.fast":
            raise  # it is there, and broken
        return None
    return fast
