"""Batch-norm by lines is torch's batch-norm: the same outputs and statistics."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rehearse.batchnorm import by_lines
from rehearse.gradients import ReplacedForwards


def images(n: int = 6, channels: int = 20, side: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, channels, side, side, generator=generator) * 3 + 1
    return x.contiguous(memory_format=torch.channels_last)


def norm(channels: int = 20, **options: Any) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(channels, **options)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=generator))
    return made


def replaced(block: ReplacedForwards) -> set[nn.Module]:
    return set(block._forwards)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"momentum": 0.3, "eps": 0.1}, {"track_running_stats": False}]
)
def test_outputs_and_statistics_are_torchs(options: dict[str, Any]) -> None:
    ours, theirs = norm(**options), norm(**options)
    with torch.no_grad(), by_lines([ours]):
        for seed in range(3):
            x = images() * (seed + 1)
            found, expected = ours(x), theirs(x)
            assert found.is_contiguous(memory_format=torch.channels_last)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(dict(ours.named_buffers())[name], buffer, rtol=1e-4, atol=1e-5)


def test_it_is_as_near_to_exact_as_single_precision_allows() -> None:
    ours, exact = norm(), norm().double()
    x = images(50, side=32)
    with torch.no_grad(), by_lines([ours]):
        found, right = ours(x), exact(x.double())
    assert (found - right).abs().max() < 4e-6  # of values up to 5


def test_only_where_it_helps_and_can_be_done() -> None:
    narrow, wide, own = norm(20), norm(24), type("Own", (nn.BatchNorm2d,), {})(20)
    assert replaced(by_lines([narrow, wide, own, nn.GroupNorm(4, 20), nn.BatchNorm1d(20)])) == {narrow}


@pytest.mark.parametrize("case", ["gradient", "eval", "plain", "layout", "double"])
def test_anything_else_is_left_to_torch_to_the_bit(case: str) -> None:
    ours = norm(affine=case != "plain")
    x = images()
    if case == "eval":
        ours.eval()
    if case == "layout":
        x = x.contiguous()
    if case == "double":
        ours, x = ours.double(), x.double()
    theirs = copy.deepcopy(ours)
    with torch.set_grad_enabled(case == "gradient"), by_lines([ours]):
        assert torch.equal(ours(x), theirs(x))
    for name, buffer in theirs.named_buffers():
        assert torch.equal(dict(ours.named_buffers())[name], buffer)


def test_nothing_stays_behind() -> None:
    ours = norm()
    with by_lines([ours]):
        assert "forward" in vars(ours)
    assert "forward" not in vars(ours)
