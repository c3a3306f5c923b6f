"""Chains of linear layers are passed by hand: what they give must be what torch gives."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse.batch import Batch
from rehearse.chain import ChainPass, chain_of, pass_chain
from rehearse.errors import InvalidInput
from rehearse.gradients import gradient_of
from rehearse.learners import Replay
from rehearse.losses import CrossEntropy
from rehearse.memory import ReservoirMemory
from rehearse.nets import MLP
from rehearse.parts import Parts, parts_of
from rehearse.retrieval import MostInterfered

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


class NothingByHand(Replay):
    """The same learner with neither chains nor factors."""

    def _parts(self) -> Parts:
        return dataclasses.replace(super()._parts(), linears=[], chain=None)


def plain(*, out_relu: bool = False) -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Flatten(), nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 30), nn.Linear(30, 5)]
    return nn.Sequential(*layers, *([nn.ReLU()] if out_relu else []))


def rows(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, 5, generator=generator), torch.randint(0, 5, (n,), generator=generator)


# ------------------------------------------------------------------------------------------------ what is a chain


def test_the_links_are_the_linear_layers_in_order_by_their_names() -> None:
    links = chain_of(MLP(20, (40, 30), 5))
    assert links is not None
    assert [(link.name, link.relu) for link in links] == [("body.1", True), ("body.3", True), ("head", False)]


class Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Called(nn.Sequential):
    def __call__(self, x: Tensor) -> Tensor:
        return 3 * super().__call__(x)


def hooked(kind: str) -> nn.Module:
    model = plain()
    getattr(model[1], kind)(lambda *arguments: None)
    return model


def listened_to() -> nn.Module:
    model = plain()
    model.register_forward_hook(lambda *arguments: None)
    return model


def frozen() -> nn.Module:
    model = plain()
    model[1].weight.requires_grad_(False)
    return model


def patched() -> nn.Module:
    model = plain()
    model[3].forward = lambda x: F.linear(x, model[3].weight)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(4, 2),
        lambda: nn.Sequential(nn.ReLU(), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.Tanh()),
        lambda: nn.Sequential(nn.Linear(4, 2), nn.Flatten()),
        lambda: nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 2)),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)),
        lambda: Doubled(nn.Linear(4, 2)),
        lambda: nn.Sequential(Doubled(nn.Linear(4, 2))),
        lambda: Called(nn.Linear(4, 2)),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Linear(2, 2)),
        lambda: hooked("register_forward_hook"),
        lambda: hooked("register_forward_pre_hook"),
        lambda: hooked("register_full_backward_hook"),
        listened_to,
        frozen,
        patched,
    ],
)
def test_anything_else_is_no_chain(make: Callable[[], nn.Module]) -> None:
    assert chain_of(make()) is None


def test_layers_that_share_a_weight_are_no_chain() -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert parts_of(model, torch.optim.SGD(model.parameters(), lr=0.1)).chain is None


def test_somebody_who_listens_to_every_module_is_heard() -> None:
    handle = nn.modules.module.register_module_forward_hook(lambda *arguments: None)
    try:
        assert chain_of(plain()) is None
    finally:
        handle.remove()
    assert chain_of(plain()) is not None


# ------------------------------------------------------------------------------------------- passes and gradients


def passed_by_hand(model: nn.Module, x: Tensor) -> ChainPass:
    links = chain_of(model)
    assert links is not None
    return pass_chain(links, x)


@pytest.mark.parametrize("out_relu", [False, True])
def test_scores_and_gradients_are_those_of_autograd(out_relu: bool) -> None:
    model = plain(out_relu=out_relu)
    stepped = parts_of(model, torch.optim.SGD(model.parameters(), lr=0.1)).stepped
    x, y = rows(6)
    expected = gradient_of(F.cross_entropy(model(x), y), stepped)
    passed = passed_by_hand(model, x)
    found = gradient_of(F.cross_entropy(passed.scores, y), stepped, [passed])
    torch.testing.assert_close(passed.scores, model(x))
    assert set(found) == set(expected)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], **CLOSE)


def test_two_passes_and_a_loss_that_names_a_parameter_itself() -> None:
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = rows(6)

    def loss(first: Tensor, second: Tensor) -> Tensor:
        return F.cross_entropy(first, y[:4]) + F.cross_entropy(second, y[4:]) + model[1].weight.pow(2).sum()

    stepped = parts_of(model, optimizer).stepped
    expected = gradient_of(loss(model(x[:4]), model(x[4:])), stepped)
    passes = [passed_by_hand(model, x[:4]), passed_by_hand(model, x[4:])]
    found = gradient_of(loss(*(each.scores for each in passes)), stepped, passes)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], **CLOSE)


def test_parameters_outside_the_optimiser_have_no_part() -> None:
    model = plain()
    parts = parts_of(model, torch.optim.SGD([model[1].weight, model[4].bias], lr=0.1))
    x, y = rows(6)
    passed = passed_by_hand(model, x)
    found = gradient_of(F.cross_entropy(passed.scores, y), parts.stepped, [passed])
    assert set(found) == {"1.weight", "4.bias"}


def test_rows_of_a_pass_are_the_pass_of_the_rows() -> None:
    model, (x, _) = plain(), rows(12)
    links = chain_of(model)
    assert links is not None
    some = torch.tensor([7, 0, 3])
    part, whole = pass_chain(links, x[some]), pass_chain(links, x)
    torch.testing.assert_close(whole.rows(some).scores, part.scores)
    for one, other in zip(whole.rows(some).inputs, part.inputs, strict=True):
        torch.testing.assert_close(one, other)


def test_cross_entropy_knows_its_own_gradient() -> None:
    scores = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    batch = Batch(torch.zeros(7, 1), torch.tensor([0, 4, 2, 2, 1, 0, 3]))
    losses, gradient = CrossEntropy().with_gradient(scores.detach(), batch, False)
    expected = CrossEntropy()(scores, batch, False)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.mean(), scores)[0])


# ------------------------------------------------------------------------------------------------------- learners


def learner(kind: type[Replay], retrieval: Any = None, **options: Any) -> Replay:
    model = plain()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return kind(model, optimizer, ReservoirMemory(40), retrieval or MostInterfered(15, "mi2"), budget=4, **options)


def stream(steps: int = 25) -> list[tuple[Tensor, Tensor, int]]:
    return [(*rows(5, seed=number), number // 8) for number in range(steps)]


def biases_apart(made: Replay) -> Replay:
    """Biases learn more slowly than weights, in a group of their own."""
    parameters = dict(made.model.named_parameters())
    biases = [name for name in parameters if name.endswith("bias")]
    made.optimizer.param_groups[0]["params"] = [parameters[name] for name in parameters if name not in biases]
    made.optimizer.add_param_group({"params": [parameters[name] for name in biases], "lr": 0.01})
    return made


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("options", [{}, {"updates": 2}, {"replay_weight": 0.5}, {"clip": 0.1}])
def test_a_learner_by_hand_does_what_one_by_autograd_does(options: dict[str, Any], apart: bool) -> None:
    fast, slow = learner(Replay, **options), learner(NothingByHand, **options)
    if apart:
        fast, slow = biases_apart(fast), biases_apart(slow)
    for x, y, task in stream():
        first, second = fast.observe(x, y, task), slow.observe(x, y, task)
        assert first.incoming_loss == pytest.approx(second.incoming_loss, rel=1e-4)
        assert (first.recalled is None) == (second.recalled is None)
        if first.recalled is not None and second.recalled is not None:
            assert first.recalled.slots.tolist() == second.recalled.slots.tolist()
            assert first.recalled_loss == pytest.approx(second.recalled_loss, rel=1e-4)
    for one, other in zip(fast.model.parameters(), slow.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    assert fast.forward_passes == slow.forward_passes


class OnlyAtFirst(MostInterfered):
    """Scores memories once, and from then on recalls the same ones without looking."""

    recalled: Batch | None = None

    def __call__(self, *arguments: Any) -> Any:
        if self.recalled is None:
            self.recalled, _ = super().__call__(*arguments)
            return None, None  # so that the pass is not asked for at this step
        return self.recalled, None


def test_a_pass_under_other_weights_is_not_gone_on_from() -> None:
    fast, slow = learner(Replay, OnlyAtFirst(15)), learner(NothingByHand, OnlyAtFirst(15))
    for x, y, task in stream(12):
        first, second = fast.observe(x, y, task), slow.observe(x, y, task)
        if second.recalled_loss is not None:
            assert first.recalled_loss == pytest.approx(second.recalled_loss, rel=1e-4)
    assert second.recalled_loss is not None


class Changing(MostInterfered):
    """Recalls the most interfered memories, changed on the way."""

    def __call__(self, *arguments: Any) -> Any:
        recalled, scores = super().__call__(*arguments)
        return (None if recalled is None else replace(recalled, x=recalled.x * 0.5)), scores


class ChangingInPlace(MostInterfered):
    def __call__(self, *arguments: Any) -> Any:
        recalled, scores = super().__call__(*arguments)
        if recalled is not None:
            recalled.x.mul_(0.5)
        return recalled, scores


class ChangingUnseen(MostInterfered):
    """Changes the rows behind torch's back."""

    def __call__(self, *arguments: Any) -> Any:
        recalled, scores = super().__call__(*arguments)
        if recalled is not None:
            recalled.x.numpy()[...] *= 0.5
        return recalled, scores


@pytest.mark.parametrize("kind", [Changing, ChangingInPlace, ChangingUnseen])
def test_rows_that_a_retrieval_changes_are_passed_as_they_are_given(kind: type[MostInterfered]) -> None:
    fast, slow = learner(Replay, kind(15)), learner(NothingByHand, kind(15))
    for x, y, task in stream():
        fast.observe(x, y, task)
        slow.observe(x, y, task)
    for one, other in zip(fast.model.parameters(), slow.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_rows_that_are_prepared_at_random_are_prepared_again() -> None:
    prepared: list[int] = []

    def prepare(x: Tensor) -> Tensor:
        prepared.append(len(x))
        return x

    made = learner(Replay, prepare=prepare)
    for x, y, task in stream(12):
        prepared.clear()
        step = made.observe(x, y, task)
    assert step.recalled is not None
    assert prepared == [5, 15, 4]  # incoming, candidates, recalled


# ------------------------------------------------------------------------------------------- what is said and kept


def test_layers_that_do_not_fit_are_told_as_any_model_that_cannot_take_a_batch() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(20, 40), nn.ReLU(), nn.Linear(30, 5))
    made = Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(10))
    with pytest.raises(InvalidInput, match="the model cannot take this batch"):
        made.observe(*rows(5))


def test_nothing_of_the_rows_stays_in_the_look_ahead() -> None:
    class Failing(MostInterfered):
        def __call__(self, *arguments: Any) -> Any:
            super().__call__(*arguments)
            raise InvalidInput("no")

    made = learner(Replay, Failing(15))
    with contextlib.suppress(InvalidInput):
        for x, y, task in stream(12):
            made.observe(x, y, task)
    assert made.lookahead._taken is None
    assert made.lookahead._scored is None


def test_a_loss_of_neither_scores_nor_parameters_moves_nothing() -> None:
    own = nn.Parameter(torch.ones(()))
    made = learner(Replay, loss=lambda scores, y: own.expand(len(y)) * 1.0)
    before = [parameter.detach().clone() for parameter in made.model.parameters()]
    for x, y, task in stream(3):
        made.observe(x, y, task)
    for parameter, was in zip(made.model.parameters(), before, strict=True):
        assert torch.equal(parameter, was)


@pytest.mark.parametrize("how", ["autocast", "bfloat16"])
def test_in_reduced_precision_torch_passes_the_chain(how: str) -> None:
    options: dict[str, Any] = {"precision": "bfloat16"} if how == "bfloat16" else {}
    fast, slow = learner(Replay, **options), learner(NothingByHand, **options)
    around = torch.autocast("cpu", dtype=torch.bfloat16) if how == "autocast" else contextlib.nullcontext()
    with around:
        for x, y, task in stream(12):
            first, second = fast.observe(x, y, task), slow.observe(x, y, task)
            assert first.incoming_loss == second.incoming_loss  # to the bit: the same passes, not by hand


def test_a_loss_that_writes_into_the_inputs_is_refused() -> None:
    def loss(scores: Tensor, batch: Batch, recalled: bool) -> Tensor:
        batch.x.mul_(0.5)
        return F.cross_entropy(scores, batch.y, reduction="none")

    made = learner(Replay, loss=loss)
    with pytest.raises(InvalidInput, match="changed in place"):
        made.observe(*rows(5))
