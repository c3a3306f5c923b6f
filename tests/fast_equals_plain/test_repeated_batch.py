"""Several steps on the same samples without the first layer's weight, against the plain descent and plain SGD."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse import GenerativeReplay
from rehearse.errors import InvalidInput, NotFinite
from rehearse.fast import repeated_batch
from rehearse.fast.repeated_batch import RepeatedBatch
from rehearse.learners.generative.descent import PlainDescent, descend
from rehearse.nets import VAE, GatedMLP
from rehearse.network import Network
from rehearse.undo import run


class Split(nn.Module):
    """rest(x Wᵀ + b) with an nn.Linear; `rest` may use W again, which it must not."""

    def __init__(self, first: nn.Linear | None = None, *, again: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.output, self.again = first or nn.Linear(40, 30), nn.Linear(30, 4), again

    @property
    def first(self) -> nn.Linear:
        return self.inner

    def rest(self, activations: Tensor) -> Tensor:
        hidden = activations.tanh()
        return self.output(hidden + self.inner.weight.sum() if self.again else hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.inner(x.flatten(1)))


def gated(dropout: float = 0.3) -> GatedMLP:
    torch.manual_seed(0)
    return GatedMLP(40, 12, 4, dropout)


def samples(n: int = 9, shape: tuple[int, ...] = (40,)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(n, *shape, generator=generator), torch.randint(0, 4, (n,), generator=generator)


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.1, **options})


def by_layer(model: nn.Module) -> torch.optim.Optimizer:
    groups = [{"params": [parameter], "lr": 0.05 * (n + 1)} for n, parameter in enumerate(model.parameters())]
    return torch.optim.SGD(groups, lr=0.1)


def network(model: nn.Module, optimizer: Callable[..., torch.optim.Optimizer] = sgd, **options: Any) -> Network:
    return Network(model, optimizer(model), **options)


def descended(own: Network, x: Tensor, y: Tensor, updates: int) -> tuple[list[float], dict[str, Tensor]]:
    """Return the losses and the gradient of a descent that is committed."""

    def objective(logits: Tensor) -> list[Tensor]:
        loss = F.cross_entropy(logits, y)
        return [loss, loss + 1]

    own.snapshot()
    with own.training():
        done = descend(own, x, objective, updates)
    gradient = done.gradient()
    run(done.operations)
    return done.losses, gradient


@pytest.mark.parametrize("updates", [2, 5])
@pytest.mark.parametrize("optimizer", [sgd, by_layer, lambda model: sgd(model, lr=0.01, maximize=True)])
@pytest.mark.parametrize("make", [Split, gated, lambda: gated(0.0)], ids=["split", "gated", "without dropout"])
def test_it_ends_where_the_plain_descent_does(
    make: Callable[[], nn.Module],
    optimizer: Callable[..., torch.optim.Optimizer],
    updates: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (x, y), fast, plain = samples(), network(make(), optimizer), network(make(), optimizer)
    assert repeated_batch(fast, x) is not None
    found = descended(fast, x, y, updates)
    monkeypatch.setenv("REHEARSE_FAST", "0")
    expected = descended(plain, x, y, updates)
    assert found[0] == pytest.approx(expected[0], abs=1e-6)
    assert found[1].keys() == expected[1].keys()
    torch.testing.assert_close(dict(found[1]), dict(expected[1]), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(dict(fast.model.state_dict()), dict(plain.model.state_dict()), rtol=1e-5, atol=1e-6)
    assert fast.samples_passed == plain.samples_passed == updates * len(x)


def test_it_ends_where_plain_sgd_does() -> None:
    (x, y), own = samples(shape=(1, 5, 8)), network(gated(0.0))
    model = copy.deepcopy(own.model)
    optimizer = sgd(model)
    for _ in range(6):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    losses, _ = descended(own, x, y, 6)
    assert losses[0] == pytest.approx(loss.item(), abs=1e-6)
    torch.testing.assert_close(dict(own.model.state_dict()), dict(model.state_dict()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("tasks", [1, 2], ids=["incoming alone", "with replay"])
def test_generative_replay_ends_where_it_does_without(tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []
    step = RepeatedBatch.step
    monkeypatch.setattr(RepeatedBatch, "step", lambda self, loss: (entered.append(1), step(self, loss))[1])
    ends = []
    for fast in ("1", "0"):
        monkeypatch.setenv("REHEARSE_FAST", fast)
        torch.manual_seed(0)
        classifier, generator = GatedMLP(20, 7, 4, 0.4), VAE((20,), hidden=8, latent=3)
        learner = GenerativeReplay(
            classifier,
            sgd(classifier),
            generator,
            sgd(generator, lr=0.01),
            memories=2,
            updates=4,
        )
        for task in range(tasks):
            generated = torch.Generator().manual_seed(task)
            x, y = torch.rand(5, 20, generator=generated), torch.tensor([0, 1, 2, 3, 0])
            done = learner.observe(x, y, task=task)
        ends.append([*classifier.parameters(), torch.tensor([done.incoming_loss, done.replayed_loss or 0.0])])
    assert len(entered) == 4 * tasks
    torch.testing.assert_close(*ends, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------------- when it does not apply


class Doubled(GatedMLP):
    """Another forward than that which `first` and `rest` were written for."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Standardized(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight - self.weight.mean(), self.bias)


def hooked() -> nn.Module:
    model = gated()
    model.output.register_forward_hook(lambda *_: None)
    return model


def weight_hooked() -> nn.Module:
    model = gated()
    model.hidden.weight.register_hook(lambda gradient: 2 * gradient)
    return model


def frozen() -> nn.Module:
    model = gated()
    model.hidden.weight.requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (gated, {"clip": 1.0}),
        (gated, {"precision": "bfloat16"}),
        (gated, {"optimizer": lambda model: sgd(model, momentum=0.9)}),
        (gated, {"optimizer": lambda model: torch.optim.Adam(model.parameters())}),
        (lambda: Doubled(40, 12, 4), {}),
        (lambda: Split(Standardized(40, 30)), {}),
        (lambda: Split(nn.Linear(40, 30, bias=False)), {}),
        (hooked, {}),
        (weight_hooked, {}),
        (frozen, {}),
    ],
    ids=["clip", "bfloat16", "momentum", "Adam", "subclass", "own layer", "no bias", "hook", "weight hook", "frozen"],
)
def test_other_models_and_settings_are_left_to_the_plain_descent(make: Any, options: dict[str, Any]) -> None:
    assert repeated_batch(network(make(), **options), samples()[0]) is None


def test_other_inputs_are_left_to_the_plain_descent() -> None:
    own, (x, _) = network(gated()), samples()
    assert repeated_batch(own, x) is not None
    assert repeated_batch(own, (x,)) is None
    assert repeated_batch(own, x.double()) is None
    assert repeated_batch(own, x[:, :39]) is None
    assert repeated_batch(own, samples(40)[0]) is None  # X Xᵀ would be larger than X
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert repeated_batch(own, x) is None


def test_one_update_takes_the_plain_descent(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []
    step = PlainDescent.step
    monkeypatch.setattr(PlainDescent, "step", lambda self, loss: (entered.append(1), step(self, loss))[1])
    descended(network(gated()), *samples(), 1)
    assert entered == [1]


def test_a_rest_that_uses_the_first_weight_is_refused() -> None:
    with pytest.raises(InvalidInput, match="must not use the weight of `first`"):
        descended(network(Split(again=True)), *samples(), 2)


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    x, y = samples()
    own = network(Split(), lambda model: sgd(model, lr=1e38))
    with pytest.raises(NotFinite):
        descended(own, x, y, 3)
