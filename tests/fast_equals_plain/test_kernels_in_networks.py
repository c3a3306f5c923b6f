"""Where a network uses compiled kernels: in private copies of the model, never in the model itself.

The kernels are tested in the distribution rehearse-kernels. Here a substitute takes their place, which only counts the
calls of the modules that it was installed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rehearse import MostInterfered, Replay, ReservoirMemory

Counts = list[str]


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(32, 4))


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Install a substitute for the kernels; returns the modes in which it was called."""
    counts: Counts = []

    def install(module: nn.Module) -> None:
        first = module.get_submodule("0")

        def forward(x: Tensor) -> Tensor:
            counts.append("training" if first.training else "looking")
            return type(first).forward(first, x)

        first.forward = forward  # type: ignore[method-assign]

    monkeypatch.setattr("rehearse.network.network.kernels", lambda: install)
    return counts


def replay(**options: Any) -> Replay:
    model = normed()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return Replay(model, optimizer, ReservoirMemory(20), MostInterfered(8), budget=4, **options)


def observe(learner: Replay, steps: range) -> Replay:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        x, y = torch.rand(5, 1, 2, 4, generator=generator), torch.randint(0, 4, (5,), generator=generator)
        learner.observe(x, y, step // 3)
    return learner


def assert_untouched(learner: Replay) -> None:
    assert not any("forward" in vars(module) for module in learner.model.modules())


def test_scoring_and_prediction_use_them_and_training_in_float32_does_not(calls: Counts) -> None:
    learner = observe(replay(), range(3))
    assert not calls  # nothing was scored
    observe(learner, range(3, 4))
    assert calls == ["looking", "looking"]  # before and after the virtual step
    learner.predict(torch.rand(2, 1, 2, 4))
    assert len(calls) == 3
    assert_untouched(learner)


def test_training_in_bfloat16_uses_them_with_the_models_own_tensors(calls: Counts) -> None:
    learner = replay(precision="bfloat16")
    before = {name: tensor.clone() for name, tensor in learner.model.state_dict().items()}
    observe(learner, range(5))
    assert calls.count("training") == 5 + 2  # incoming batches, and replayed ones
    assert calls.count("looking") == 4
    assert all(not torch.equal(tensor, before[name]) for name, tensor in learner.model.state_dict().items())
    assert_untouched(learner)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "bfloat16-scoring"])
def test_results_are_those_without_a_copy(calls: Counts, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = observe(replay(precision=precision), range(8))
    monkeypatch.setattr("rehearse.network.network.kernels", lambda: None)
    plain = observe(replay(precision=precision), range(8))
    for one, other in zip(installed.model.state_dict().values(), plain.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    x = torch.rand(6, 1, 2, 4)
    assert torch.equal(installed.predict_proba(x), plain.predict_proba(x))


def test_a_learner_resumes_bit_for_bit(calls: Counts) -> None:
    whole = observe(replay(precision="bfloat16"), range(8))
    resumed = replay(precision="bfloat16")
    resumed.load_state_dict(observe(replay(precision="bfloat16"), range(5)).state_dict())
    observe(resumed, range(5, 8))
    for one, other in zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(one, other)


def test_modules_that_the_user_changes_are_followed(calls: Counts) -> None:
    learner = observe(replay(precision="bfloat16"), range(4))
    seen: list[int] = []
    learner.model.get_submodule("4").register_forward_hook(lambda *_: seen.append(1))
    observe(learner, range(4, 5))
    assert len(seen) == 2 + 2  # training and scoring
    learner.grow(6)
    observe(learner, range(5, 6))
    assert learner.logits(torch.rand(2, 1, 2, 4)).shape == (2, 6)
    assert_untouched(learner)


def test_kernels_that_cannot_be_installed_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def install(module: nn.Module) -> None:
        raise RuntimeError("not this model")

    installing: Callable[[], Any] = lambda: install  # noqa: E731
    monkeypatch.setattr("rehearse.network.network.kernels", installing)
    learner = observe(replay(precision="bfloat16"), range(5))
    learner.predict(torch.rand(2, 1, 2, 4))
    assert_untouched(learner)
