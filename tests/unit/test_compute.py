"""How things are computed: whose random numbers are drawn, in which mode, in which precision, from which inputs."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
import torch
from torch import nn

from rehearse import compute
from rehearse.compute import RandomState
from rehearse.errors import InvalidInput


def draw_and_fail() -> None:
    torch.rand(3)
    raise ZeroDivisionError


def test_generators_come_from_seed_and_name() -> None:
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence([7, zlib.crc32(b"insert")])))
    assert (
        compute.numpy_generator(7, "insert").integers(0, 1 << 60, 5).tolist()
        == expected.integers(0, 1 << 60, 5).tolist()
    )
    draws = {
        (seed, name): int(compute.numpy_generator(seed, name).integers(0, 1 << 60))
        for seed in (0, 1)
        for name in ("insert", "sample")
    }
    assert len(set(draws.values())) == 4
    one, two = compute.torch_generator(0, "torch"), compute.torch_generator(0, "torch")
    assert torch.equal(torch.rand(3, generator=one), torch.rand(3, generator=two))


@pytest.mark.parametrize("seed", [-1, 1.5, "0", True, None])
def test_refused_seeds(seed: int) -> None:
    with pytest.raises(InvalidInput, match="seed"):
        compute.numpy_generator(seed, "insert")


def test_the_random_state_is_the_learners_inside_and_the_worlds_outside() -> None:
    before = torch.get_rng_state()
    state = RandomState(3)
    assert torch.equal(torch.get_rng_state(), before)
    with state:
        first = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)  # what others draw in between is nothing to it
    with state:
        second = torch.rand(2)
    again = RandomState(3)
    with again:
        assert torch.equal(torch.rand(4), torch.cat([first, second]))
    with RandomState(4):
        assert not torch.equal(torch.rand(2), first)


def test_the_random_state_is_put_back_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), RandomState(3):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_borrowing_draws_without_moving() -> None:
    state = RandomState(3)
    with state.borrowed():
        borrowed = torch.rand(2)
    with state:
        assert torch.equal(torch.rand(2), borrowed)


def test_a_random_state_goes_on_where_it_was_saved() -> None:
    state, other = RandomState(3), RandomState(4)
    with state:
        torch.rand(2)
    other.set(state.get())
    with state:
        expected = torch.rand(3)
    with other:
        assert torch.equal(torch.rand(3), expected)


def test_a_kept_random_state_is_the_same_afterwards() -> None:
    before = torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), compute.random_state_kept(torch.device("cpu")):
        draw_and_fail()
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------------------------------------------- modes

Mode = Callable[[nn.Module], AbstractContextManager[None]]


def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(), nn.BatchNorm1d(2))


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("mode", [compute.training_mode, compute.scoring_mode, compute.evaluation_mode])
@pytest.mark.parametrize("training", [True, False])
def test_modes_are_put_back(mode: Mode, training: bool) -> None:
    model = small_net().train(training)
    model[1].training = not training
    before = modes(model)
    with pytest.raises(ZeroDivisionError), mode(model):
        _ = 1 / 0
    assert modes(model) == before


def test_what_the_modes_are() -> None:
    model = small_net().eval()
    with compute.training_mode(model):
        assert modes(model) == [True] * 5
    with compute.scoring_mode(model):
        assert modes(model) == [False, False, True, False, True]
    with compute.evaluation_mode(model.train()):
        assert modes(model) == [False] * 5


def test_a_part_frozen_in_eval_mode_stays_frozen() -> None:
    model = small_net()
    model[1].eval()
    with compute.training_mode(model):
        assert modes(model) == [True, True, False, True, True]
        with compute.scoring_mode(model):
            assert modes(model) == [False, False, False, False, True]


def test_batchnorms_are_found_at_any_depth() -> None:
    model = nn.Sequential(small_net(), nn.BatchNorm2d(3), nn.LayerNorm(2))
    assert len(compute.batchnorms(model)) == 3


# --------------------------------------------------------------------------------------------- precision, inputs


def test_precision_is_a_fixed_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    flat, images, device = nn.Linear(2, 2), nn.Conv2d(1, 1, 1), torch.device("cpu")
    for native, expected in ((True, "bfloat16-scoring"), (False, "float32")):
        monkeypatch.setattr(compute, "native_bfloat16", lambda device, native=native: native)
        assert compute.resolve_precision("auto", images, device).name == expected
        assert compute.resolve_precision("auto", flat, device).name == "float32"
    for name in ("float32", "bfloat16", "bfloat16-scoring"):
        assert compute.resolve_precision(name, flat, device).name == name
    assert not compute.resolve_precision("float32", images, device).channels_last
    monkeypatch.setattr(nn.Conv2d, "channels_last", True, raising=False)  # what a network says that may be laid out so
    assert compute.resolve_precision("float32", images, device).channels_last
    assert not compute.resolve_precision("float32", flat, device).channels_last
    with pytest.raises(InvalidInput, match="float16"):
        compute.resolve_precision("float16", flat, device)


@pytest.mark.parametrize(
    ("precision", "training", "scoring"),
    [
        ("float32", torch.float32, torch.float32),
        ("bfloat16", torch.bfloat16, torch.bfloat16),
        ("bfloat16-scoring", torch.float32, torch.bfloat16),
    ],
)
def test_passes_run_in_the_precision_asked_for(precision: str, training: torch.dtype, scoring: torch.dtype) -> None:
    model, device = nn.Linear(2, 2), torch.device("cpu")
    computation = compute.resolve_precision(precision, model, device)
    with computation.autocast(device, scoring=False):
        assert model(torch.ones(1, 2)).dtype == training
    with computation.autocast(device, scoring=True):
        assert model(torch.ones(1, 2)).dtype == scoring


def test_images_alone_change_their_layout() -> None:
    computation = compute.Computation(torch.float32, torch.float32, channels_last=True)
    image, vector = computation.layout((torch.ones(2, 3, 4, 4), torch.ones(2, 3)))
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert vector.is_contiguous()
    same = torch.ones(2, 3, 4, 4)
    assert compute.Computation(torch.float32, torch.float32, channels_last=False).layout(same) is same


def test_inputs_are_prepared_by_their_dtype() -> None:
    bytes_, floats, tokens, flags = compute.prepare_unit(
        (
            torch.tensor([0, 51, 255], dtype=torch.uint8),
            torch.tensor([0.5], dtype=torch.float64),
            torch.tensor([7]),
            torch.tensor([True]),
        )
    )
    torch.testing.assert_close(bytes_, torch.tensor([0.0, 0.2, 1.0]))
    assert (floats.dtype, tokens.dtype, flags.dtype) == (torch.float32, torch.int64, torch.float32)
    symmetric = compute.prepare_symmetric({"a": torch.tensor([0, 255], dtype=torch.uint8), "b": torch.tensor([3.0])})
    torch.testing.assert_close(symmetric["a"], torch.tensor([-1.0, 1.0]))
    assert symmetric["b"].tolist() == [3.0]


def test_preparing_never_changes_what_was_given() -> None:
    given = torch.tensor([0, 255], dtype=torch.uint8)
    compute.prepare_unit(given), compute.prepare_symmetric(given)
    assert given.tolist() == [0, 255]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_get_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    prepare = compute.prepare_for_model(nn.Linear(2, 2).to(dtype))
    assert prepare(torch.ones(1, 2, dtype=torch.uint8)).dtype == dtype
    assert prepare(torch.ones(1, 2)).dtype == dtype


def test_rows_are_passed_in_parts_of_as_many_as_stay_in_the_caches() -> None:
    def sizes(x: object) -> list[int]:
        return [len(part[1] if isinstance(part, tuple) else part) for part in compute.in_parts(x)]

    assert sizes(torch.empty(2500, 3)) == [1000, 1000, 500]
    assert sizes(torch.empty(600, 3, 32, 32)) == [260, 260, 80]
    assert sizes((torch.empty(3, 400_000), torch.empty(3, 400_000))) == [1, 1, 1]
    assert sizes(torch.empty(0, 3)) == [0]
    assert sizes(torch.empty(2, 0)) == [2]
    x = torch.arange(5000).view(2500, 2)
    assert torch.equal(torch.cat(compute.in_parts(x)), x)
