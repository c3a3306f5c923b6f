"""Passes of a network: random numbers, modes, precision and prepared inputs."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from torch import nn

from rehearse import precision
from rehearse.batch import tree_parts
from rehearse.errors import InvalidInput
from rehearse.lab.methods import prepare_symmetric
from rehearse.network import Network, prepare_unit
from rehearse.network.twin import Twin
from rehearse.random import RandomState, borrowed, numpy_generator, torch_generator


def draw_and_fail() -> None:
    torch.rand(3)
    raise ZeroDivisionError


def test_generators_come_from_seed_and_name() -> None:
    expected = np.random.Generator(np.random.PCG64(np.random.SeedSequence([7, zlib.crc32(b"insert")])))
    assert numpy_generator(7, "insert").integers(0, 1 << 60, 5).tolist() == expected.integers(0, 1 << 60, 5).tolist()
    draws = {
        (seed, name): int(numpy_generator(seed, name).integers(0, 1 << 60))
        for seed in (0, 1)
        for name in ("insert", "sample")
    }
    assert len(set(draws.values())) == 4
    one, two = torch_generator(0, "torch"), torch_generator(0, "torch")
    assert torch.equal(torch.rand(3, generator=one), torch.rand(3, generator=two))


@pytest.mark.parametrize("seed", [-1, 1.5, "0", True, None])
def test_refused_seeds(seed: int) -> None:
    with pytest.raises(InvalidInput, match="seed"):
        numpy_generator(seed, "insert")


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
    with borrowed(state):
        drawn = torch.rand(2)
    with state:
        assert torch.equal(torch.rand(2), drawn)


def test_a_random_state_can_be_entered_inside_itself() -> None:
    before, state, other = torch.get_rng_state(), RandomState(3), RandomState(3)
    with state:
        first = torch.rand(2)
        with state:
            second = torch.rand(2)
        third = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)
    with other:
        assert torch.equal(torch.rand(6), torch.cat([first, second, third]))


def test_a_random_state_goes_on_where_it_was_saved() -> None:
    state, other = RandomState(3), RandomState(4)
    with state:
        torch.rand(2)
    other.set(state.get())
    with state:
        expected = torch.rand(3)
    with other:
        assert torch.equal(torch.rand(3), expected)


# ------------------------------------------------------------------------------------------------------- modes


def modes(model: nn.Module) -> list[bool]:
    return [module.training for module in model.modules()]


def test_the_modes_of_the_twin() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(), nn.BatchNorm1d(2)).eval()
    twin = Twin(model)
    assert modes(twin.in_mode("training")) == [True] * 5
    assert modes(twin.in_mode("scoring")) == [False, False, True, False, True]
    assert modes(twin.in_mode("evaluation")) == [False] * 5
    model.train()[1].eval()  # the user froze this one
    assert modes(twin.in_mode("training")) == [True, True, False, True, True]
    assert modes(twin.in_mode("scoring")) == [False, False, False, False, True]
    assert modes(model) == [True, True, False, True, True]


def test_a_twin_follows_its_model() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    twin = Twin(model)
    first = twin.in_mode("evaluation")
    assert twin.in_mode("training") is first
    model[1].p = 0.1
    assert twin.in_mode("training")[1].p == 0.1
    model[0] = nn.Linear(2, 3)
    assert twin.in_mode("training")[0].out_features == 3
    handle = model[0].register_forward_hook(lambda *_: None)
    assert len(twin.in_mode("training")[0]._forward_hooks) == 1
    handle.remove()
    assert not twin.in_mode("training")[0]._forward_hooks


# --------------------------------------------------------------------------------------------- precision, inputs


def test_precision_is_a_fixed_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    flat, images, device = nn.Linear(2, 2), nn.Conv2d(1, 1, 1), torch.device("cpu")
    for native, expected in ((True, "bfloat16-scoring"), (False, "float32")):
        monkeypatch.setattr(precision, "supports_bfloat16", lambda device, native=native: native)
        assert precision.resolve_precision("auto", images, device).name == expected
        assert precision.resolve_precision("auto", flat, device).name == "float32"
    for name in ("float32", "bfloat16", "bfloat16-scoring"):
        assert precision.resolve_precision(name, flat, device).name == name
    assert not precision.resolve_precision("float32", images, device).channels_last
    monkeypatch.setattr(nn.Conv2d, "channels_last", True, raising=False)  # what a network says that may be laid out so
    assert precision.resolve_precision("float32", images, device).channels_last
    assert not precision.resolve_precision("float32", flat, device).channels_last
    with pytest.raises(InvalidInput, match="float16"):
        precision.resolve_precision("float16", flat, device)


@pytest.mark.parametrize(
    ("name", "training", "scoring"),
    [
        ("float32", torch.float32, torch.float32),
        ("bfloat16", torch.bfloat16, torch.bfloat16),
        ("bfloat16-scoring", torch.float32, torch.bfloat16),
    ],
)
def test_passes_run_in_their_precision(name: str, training: torch.dtype, scoring: torch.dtype) -> None:
    model = nn.Linear(2, 2)
    network = Network(model, torch.optim.SGD(model.parameters(), lr=0.1), precision=name)
    assert network(torch.ones(1, 2)).dtype == training
    with network.looking("scoring"):
        assert network(torch.ones(1, 2), network.twin.tensors(), network.precision.scoring).dtype == scoring


def test_inputs_are_prepared_by_their_dtype() -> None:
    bytes_, floats, tokens, flags = prepare_unit(
        (
            torch.tensor([0, 51, 255], dtype=torch.uint8),
            torch.tensor([0.5], dtype=torch.float64),
            torch.tensor([7]),
            torch.tensor([True]),
        )
    )
    torch.testing.assert_close(bytes_, torch.tensor([0.0, 0.2, 1.0]))
    assert (floats.dtype, tokens.dtype, flags.dtype) == (torch.float32, torch.int64, torch.float32)
    symmetric = prepare_symmetric({"a": torch.tensor([0, 255], dtype=torch.uint8), "b": torch.tensor([3.0])})
    torch.testing.assert_close(symmetric["a"], torch.tensor([-1.0, 1.0]))
    assert symmetric["b"].tolist() == [3.0]


def test_preparing_never_changes_what_was_given() -> None:
    given = torch.tensor([0, 255], dtype=torch.uint8)
    prepare_unit(given), prepare_symmetric(given)
    assert given.tolist() == [0, 255]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_inputs_get_the_dtype_of_the_model(dtype: torch.dtype) -> None:
    model = nn.Linear(2, 2).to(dtype)
    network = Network(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert network.prepare(torch.ones(1, 2, dtype=torch.uint8)).dtype == dtype
    assert network.prepare(torch.ones(1, 2)).dtype == dtype


def test_samples_are_passed_in_parts_of_as_many_as_stay_in_the_caches() -> None:
    def sizes(x: object) -> list[int]:
        return [len(part[1] if isinstance(part, tuple) else part) for part in tree_parts(x)]

    assert sizes(torch.empty(2500, 3)) == [1000, 1000, 500]
    assert sizes(torch.empty(600, 3, 32, 32)) == [260, 260, 80]
    assert sizes((torch.empty(3, 400_000), torch.empty(3, 400_000))) == [1, 1, 1]
    assert sizes(torch.empty(0, 3)) == [0]
    assert sizes(torch.empty(2, 0)) == [2]
    x = torch.arange(5000).view(2500, 2)
    assert torch.equal(torch.cat(tree_parts(x)), x)
