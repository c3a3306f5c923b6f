"""Everything that exists for speed alone. Deleting this folder leaves the same library, slower."""

from collections.abc import Callable

from torch import nn

from .dense import dense
from .repeated_batch import LinearFirst, repeated_batch

try:
    import rehearse_kernels
except ImportError:
    rehearse_kernels = None

ENGINES = {nn.Sequential: dense}
"""By kind of model: a function of the plain engine and the inputs that returns a faster engine, or None."""
DESCENTS = {LinearFirst: repeated_batch}
"""By kind of model: a function of the network and the inputs that returns a faster descent, or None."""


def kernels() -> Callable[[nn.Module], None] | None:
    """Return what lets a private copy of a model use the compiled kernels, if there are some for this processor."""
    return _install if rehearse_kernels is not None and rehearse_kernels.available() else None


def _install(module: nn.Module) -> None:
    """Use kernels for convolutions and batch-norm; if the class says ``kernels_in_float32 = True``, for float32 too."""
    rehearse_kernels.install(module, full=bool(getattr(module, "kernels_in_float32", False)))
