"""Convolution and batch-norm kernels for images with few channels, in bfloat16 on one CPU core.

Example::

    import copy
    import rehearse_kernels

    private = copy.deepcopy(model)  # a model with channels_last = True
    rehearse_kernels.install(private)
    with torch.autocast("cpu", torch.bfloat16):
        outputs = private(x)
"""

from .library import available, why_not
from .sequences import install

__all__ = ["available", "install", "why_not"]
