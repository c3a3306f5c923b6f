"""What the tests of the kernels share, and where they can run: where kernels are meant to. That they compile there is a
test of its own."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rehearse.kernels import functions
from rehearse.kernels.library import SWITCH

MEANT = platform.system() == "Linux" and torch.cpu._is_avx512_bf16_supported() and os.environ.get(SWITCH) != "torch"
needs_kernels = pytest.mark.skipif(
    not MEANT or shutil.which(shlex.split(os.environ.get("CC", "cc"))[0]) is None,
    reason="no AVX-512 with bfloat16 here, no C compiler, or REHEARSE_KERNELS=torch: torch's kernels are used",
)
HALF_A_DIGIT = 2.0**-8  # bfloat16 has eight bits; half of the last one, and the sums' own rounding


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rounded(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16)


def assert_near(found: Tensor, exact: Tensor, relative: float) -> None:
    """Each number to so many digits, those near zero as well as sums of such numbers allow."""
    spread = exact.detach().double().square().mean().sqrt()
    torch.testing.assert_close(found.double(), exact.double(), rtol=relative, atol=2e-5 * float(spread) + 1e-30)


def reduced() -> Any:
    return torch.autocast("cpu", torch.bfloat16)


def sequence(*parts: nn.Module) -> nn.Sequential:
    """Parts in a row, of a model that says it runs channels-last."""
    net = nn.Sequential(*parts)
    net.channels_last = True
    return net


def recorded() -> Any:
    """The names of the kernels that are called in the block."""
    calls: list[str] = []
    own = functions._call

    class Block:
        def __enter__(self) -> list[str]:
            functions._call = lambda name, *rest: (calls.append(name), own(name, *rest))[1]
            return calls

        def __exit__(self, *exception: object) -> None:
            functions._call = own

    return Block()
