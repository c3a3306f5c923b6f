"""Compiled kernels for convolutions and batch-norm, if the distribution rehearse-kernels is installed."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

try:
    import rehearse_kernels
except ImportError:
    rehearse_kernels = None


def kernels() -> Callable[[nn.Module], None] | None:
    """Return what lets a private copy of a model use the kernels, if they are installed for this processor."""
    return _install if rehearse_kernels is not None and rehearse_kernels.available() else None


def _install(module: nn.Module) -> None:
    """Use the kernels where they apply; if the class says ``kernels_in_float32 = True``, for float32 too."""
    rehearse_kernels.install(module, full=bool(getattr(module, "kernels_in_float32", False)))
