"""Where tests of the kernels can run: where they are meant to. That they compile there is a test of its own."""

from __future__ import annotations

import os
import platform
import shlex
import shutil

import pytest
import torch

from rehearse.kernels.library import SWITCH

MEANT = platform.system() == "Linux" and torch.cpu._is_avx512_bf16_supported() and os.environ.get(SWITCH) != "torch"
needs_kernels = pytest.mark.skipif(
    not MEANT or shutil.which(shlex.split(os.environ.get("CC", "cc"))[0]) is None,
    reason="no AVX-512 with bfloat16 here, no C compiler, or REHEARSE_KERNELS=torch: torch's kernels are used",
)
