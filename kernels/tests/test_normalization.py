"""Batch-norm and its gradients, compared with float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from kernel_fixtures import HALF_A_DIGIT, assert_near, bfloat16, random, rounded, sequence
from rehearse_kernels import install
from rehearse_kernels.functions import layer


class Reference(nn.Module):
    """A batch-norm with the sum and the ReLU that follow."""

    def __init__(self, channels: int, relu: bool) -> None:
        super().__init__()
        self.norm, self.relu = nn.BatchNorm2d(channels), relu
        nn.init.normal_(self.norm.weight)
        nn.init.normal_(self.norm.bias)

    def forward(self, x: Tensor, added: Tensor | None) -> Tensor:
        made = self.norm(x) if added is None else self.norm(x) + added
        return F.relu(made) if self.relu else made


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(1, 70),
    st.integers(1, 5),
    st.integers(2, 9),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 3.0, -100.0]),
)
@pytest.mark.usefixtures("kernels")
def test_a_batch_norm_and_its_gradients(
    channels: int, images: int, side: int, relu: bool, adds: bool, mean: float
) -> None:
    torch.manual_seed(channels)
    block = Reference(channels, relu)
    x = rounded(2 * random(images, channels, side, side) + mean).requires_grad_()
    added = rounded(random(*x.shape, seed=2)).requires_grad_() if adds else None
    exact = copy.deepcopy(block).double()
    exact_x, exact_added = (each if each is None else each.detach().double().requires_grad_() for each in (x, added))
    made, means, variances = layer(x, None, None, block.norm, relu, added)
    right = exact(exact_x, exact_added)
    assert_near(made, right, HALF_A_DIGIT)
    axes = (0, 2, 3)
    assert_near(means, exact_x.mean(axes), 1e-5)
    assert_near(variances, exact_x.var(axes), 1e-4)
    gradient = rounded(random(*made.shape, seed=1))
    before = exact.norm(exact_x.detach()) + (0 if exact_added is None else exact_added.detach())
    gradient = gradient * (before.abs() > 1e-3)  # rounding may move sums near zero to the other side of the ReLU
    wanted = [each for each in (x, *block.norm.parameters(), added) if each is not None]
    others = [each for each in (exact_x, *exact.norm.parameters(), exact_added) if each is not None]
    found = torch.autograd.grad(made, wanted, gradient)
    expected = torch.autograd.grad(right, others, gradient.double())
    for own, value in zip(found, expected, strict=True):
        torch.testing.assert_close(own.double(), value, rtol=HALF_A_DIGIT, atol=float(value.abs().max()) * 2e-4 + 1e-7)


@pytest.mark.parametrize(
    "options", [{}, {"momentum": None}, {"momentum": 0.3, "eps": 0.1}, {"track_running_stats": False}]
)
def test_running_statistics_move_as_in_torch(kernels: list[str], options: dict[str, Any]) -> None:
    ours, theirs = (sequence(nn.BatchNorm2d(20, **options), nn.ReLU()) for _ in range(2))
    install(ours)
    for seed in range(3):
        x = rounded(random(5, 20, 6, 6, seed=seed) + seed)
        with bfloat16():
            assert_near(ours(x), theirs(x), 2 * HALF_A_DIGIT)
    assert kernels == ["normalize"] * 3
    for name, buffer in theirs.named_buffers():
        torch.testing.assert_close(dict(ours.named_buffers())[name], buffer, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_stay_so(value: float) -> None:
    x = rounded(random(2, 4, 3, 3))
    x[0, 1, 0, 0] = value
    made = layer(x, None, None, nn.BatchNorm2d(4), True)[0]
    assert not made[:, 1].isfinite().any()
    assert made[:, [0, 2, 3]].isfinite().all()


@pytest.mark.usefixtures("kernels")
def test_one_pixel_per_channel_is_an_error_as_in_torch() -> None:
    net = sequence(nn.BatchNorm2d(4))
    install(net)
    with bfloat16(), pytest.raises(ValueError, match="more than 1 value per channel"):
        net(rounded(random(1, 4, 1, 1)))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("samples", "channels", "side"), [(110, 16, 32), (40, 64, 84), (110, 20, 32)])
def test_the_variance_of_many_and_uneven_pixels_is_accurate(samples: int, channels: int, side: int) -> None:
    x = random(samples, channels, side, side) + 10
    x[0, :, :4] = 0  # the first lines are dark
    x = rounded(x)
    _, mean, variance = layer(x, None, None, nn.BatchNorm2d(channels))
    exact = x.double()
    torch.testing.assert_close(mean.double(), exact.mean((0, 2, 3)), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(variance.double(), exact.var((0, 2, 3)), rtol=1e-4, atol=0)
