"""Transforms of whole batches against slow versions, one sample at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Generator, Tensor

from rehearse.errors import InvalidInput, InvalidType
from rehearse.transforms import Chain, Color, Crop, Flip, Transform


def generator() -> Generator:
    return Generator().manual_seed(3)


def images(dtype: torch.dtype, shape: tuple[int, ...] = (40, 3, 5, 7)) -> Tensor:
    values = torch.randint(0, 256, shape, generator=Generator().manual_seed(0), dtype=torch.uint8)
    return values if dtype == torch.uint8 else (values / 255).to(dtype)


def cropped(x: Tensor, padding: int, fill: float) -> Tensor:
    top, left = torch.randint(2 * padding + 1, (2, len(x)), generator=generator()).tolist()
    height, width = x.shape[-2:]
    out = torch.full_like(x, fill)
    for n in range(len(x)):
        for row in range(height):
            for column in range(width):
                source = row + top[n] - padding, column + left[n] - padding
                if 0 <= source[0] < height and 0 <= source[1] < width:
                    out[n, ..., row, column] = x[n, ..., source[0], source[1]]
    return out


def mirrored(x: Tensor, p: float) -> Tensor:
    drawn = torch.rand(len(x), generator=generator()).tolist()
    return torch.stack([one.flip(-1) if share < p else one for one, share in zip(x, drawn, strict=True)])


def colored(x: Tensor, brightness: float, contrast: float) -> Tensor:
    drawn = 2 * torch.rand(2, len(x), generator=generator()) - 1
    out = []
    for one, b, c in zip(x.double(), *drawn.double(), strict=True):
        changed = (1 + brightness * b) * (one.mean() + (1 + contrast * c) * (one - one.mean()))
        out.append(changed if x.is_floating_point() else changed.round().clamp(0, 255))
    return torch.stack(out).to(x.dtype)


@pytest.mark.parametrize("shape", [(40, 3, 5, 7), (40, 5, 7)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64, torch.bfloat16])
def test_each_equals_its_slow_version(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = images(dtype, shape)
    before = x.clone()
    middle = 128 if dtype == torch.uint8 else 0
    assert torch.equal(Crop(2)(x, generator()), cropped(x, 2, middle))
    assert torch.equal(Crop(6, fill=1)(x, generator()), cropped(x, 6, 1))  # more than the image
    assert torch.equal(Flip(0.3)(x, generator()), mirrored(x, 0.3))
    if dtype != torch.bfloat16:
        found = Color(0.4, 0.3)(x, generator())
        torch.testing.assert_close(found, colored(x, 0.4, 0.3), rtol=1e-5, atol=1 if dtype == torch.uint8 else 1e-6)
    assert torch.equal(x, before)


def test_flips_and_crops_are_of_all_kinds() -> None:
    x = images(torch.uint8, (200, 1, 4, 4))
    assert 60 < sum(torch.equal(a, b) for a, b in zip(Flip()(x, generator()), x, strict=True)) < 140
    assert torch.equal(Flip(0)(x, generator()), x)
    assert torch.equal(Flip(1)(x, generator()), x.flip(-1))
    point = torch.zeros(500, 1, 3, 3)
    point[:, :, 1, 1] = 1
    places = Crop(1)(point, generator()).flatten(1).argmax(1)
    assert torch.bincount(places).min() > 30  # all nine


@pytest.mark.parametrize("transform", [Crop(1), Flip(), Color(), Chain(Crop(1), Flip(), Color())])
def test_the_generator_decides_everything(transform: Transform) -> None:
    x, own = images(torch.uint8), generator()
    state = torch.get_rng_state()
    first, second = transform(x, own), transform(x, own)
    assert torch.equal(transform(x, generator()), first)
    assert not torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), state)
    assert first.shape == x.shape
    assert first.dtype == x.dtype
    assert transform(x[:0], own).shape == x[:0].shape


def test_a_chain_is_one_after_the_other() -> None:
    x, own = images(torch.float32), generator()
    expected = Flip()(Crop(1)(x, own), own)
    assert torch.equal(Chain(Crop(1), Flip())(x, generator()), expected)
    assert repr(Chain(Crop(1), Flip(), Color(contrast=0.0))) == "Chain(Crop(padding=1), Flip(), Color(contrast=0.0))"


@pytest.mark.parametrize(
    "x", [torch.ones(3, 8), torch.ones(2, 3, 4, 5, 6), (torch.ones(2, 3, 4),), torch.ones(2, 3, 4).long()]
)
@pytest.mark.parametrize("transform", [Crop(), Flip(), Color()])
def test_what_is_no_image_is_refused(transform: Transform, x: Any) -> None:
    with pytest.raises(InvalidInput, match="this augmentation takes images"):
        transform(x, generator())


def test_invalid_settings() -> None:
    for make in (lambda: Crop(0), lambda: Flip(1.5), lambda: Flip(-0.1), lambda: Color(2.0), lambda: Color(0.2, True)):
        with pytest.raises(InvalidInput, match="must be"):
            make()
    for wrong in (Flip, "flip", None):
        with pytest.raises(InvalidType, match=r"a transform is a function \(x, generator\)"):
            Chain(wrong)  # type: ignore[arg-type]
