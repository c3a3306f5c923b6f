"""Models that do what few models do: the fast paths must notice, and leave them to torch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rehearse import Batch, Lookahead, MostInterfered, Replay, ReservoirMemory
from rehearse.batchnorm import by_lines
from rehearse.compute import evaluation_mode, scoring_mode, training_mode
from rehearse.errors import InvalidInput
from rehearse.gradients import FactoredGradient, gradient_of, linear_uses
from rehearse.learners import Finetune
from rehearse.learners.same_rows import SameRows, can_stay
from rehearse.parts import parts_of

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}


def rows(n: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 40, generator=generator), torch.randint(0, 4, (n,), generator=generator)


def sgd(model: nn.Module, lr: float = 0.5) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=lr)


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.head = nn.Linear(40, 60), nn.Linear(60, 50)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.inner(x).relu())
        return scores


class ScaledGradient(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: 0.1 * gradient)
        scores: Tensor = self.head(hidden.relu())
        return scores


class Energy(TwoLayers):
    """Its output is the gradient of an energy with respect to the inputs."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.head(self.inner(x).tanh()).square().sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]


class Keywords(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(input=self.inner(input=x).relu())
        return scores


class Checkpointed(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(checkpoint(self.inner, x, use_reentrant=False).relu())
        return scores


class ReadsItsWeight(TwoLayers):
    """Divides by the norm of a weight, which autograd is not to see."""

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.inner(x).relu()) / self.head.weight.norm(dim=1).detach()
        return scores


class AsksWhereItIs(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.inner.weight.device))


class Legacy(TwoLayers):
    def __init__(self) -> None:
        super().__init__()
        scaled = lambda _, entering, leaving: tuple(None if each is None else 0.1 * each for each in entering)  # noqa: E731
        self.inner.register_backward_hook(scaled)


UNUSUAL = [TwoLayers, ScaledGradient, Energy, Keywords, Checkpointed, ReadsItsWeight, AsksWhereItIs, Legacy]


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("kind", UNUSUAL)
def test_a_step_is_that_of_torch(kind: type[nn.Module]) -> None:
    model = kind()
    literal, (x, y) = copy.deepcopy(model), rows()
    optimizer = sgd(literal)
    F.cross_entropy(literal(x), y).backward()
    optimizer.step()
    Finetune(model, sgd(model)).observe(x, y)
    for expected, found in zip(literal.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("kind", UNUSUAL)
def test_what_is_foreseen_is_what_the_step_does(kind: type[nn.Module]) -> None:
    model = kind()
    (x, y), (seen_x, seen_y) = rows(), rows(7, 1)
    literal = copy.deepcopy(model)
    optimizer = sgd(literal)
    F.cross_entropy(literal(x), y).backward()
    optimizer.step()
    noting = linear_uses(parts_of(model, sgd(model)))
    with noting:
        loss = F.cross_entropy(model(x), y)
    with noting as uses:
        gradient = gradient_of(loss, parts_of(model, sgd(model)).stepped, uses)
    with torch.no_grad():
        expected = [F.cross_entropy(each(seen_x), seen_y, reduction="none") for each in (model, literal)]
    found = Lookahead(model, sgd(model)).losses(Batch(seen_x, seen_y), gradient)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_penalty_on_the_gradient_can_be_learned_from() -> None:
    model = TwoLayers()

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(scores, y, reduction="none")
        slopes = torch.autograd.grad(losses.mean(), list(model.parameters()), create_graph=True)
        return losses + sum(slope.square().sum() for slope in slopes)

    literal, (x, y) = copy.deepcopy(model), rows()
    losses = F.cross_entropy(literal(x), y, reduction="none")
    slopes = torch.autograd.grad(losses.mean(), list(literal.parameters()), create_graph=True)
    (losses.mean() + sum(slope.square().sum() for slope in slopes)).backward()
    sgd(literal).step()
    Finetune(model, sgd(model), loss=loss).observe(x, y)
    for expected, found in zip(literal.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)


def test_a_copy_that_the_loss_takes_is_a_copy() -> None:
    model = TwoLayers()
    teachers: list[nn.Module] = []

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        if len(teachers) < 4:
            teachers.append(copy.deepcopy(model))
        return F.cross_entropy(scores, y, reduction="none")

    start, learner = copy.deepcopy(model), Replay(model, sgd(model), ReservoirMemory(50), MostInterfered(10), loss=loss)
    for seed in range(6):
        learner.observe(*rows(5, seed))
    x, _ = rows(9, 9)
    assert torch.equal(teachers[0](x), start(x))
    assert not any("forward" in vars(module) for teacher in teachers for module in teacher.modules())


def test_factors_outlive_the_buffers_that_they_were_made_of() -> None:
    class Prototypes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.body, self.key = nn.Linear(40, 60), nn.Linear(60, 60)
            self.register_buffer("prototypes", torch.randn(4, 60))

        def forward(self, x: Tensor) -> Tensor:
            features = self.body(x)
            scores: Tensor = features @ self.key(self.prototypes).t()
            return scores

    model = Prototypes()
    noting, stepped = linear_uses(parts_of(model, sgd(model))), parts_of(model, sgd(model)).stepped
    x, y = rows()
    plain = gradient_of(F.cross_entropy(model(x), y), stepped)
    with noting:
        loss = F.cross_entropy(model(x), y)
    with noting as uses:
        gradient = gradient_of(loss, stepped, uses)
    assert isinstance(gradient, FactoredGradient)
    assert "key.weight" in gradient.factors
    model.get_buffer("prototypes").zero_()  # as a later pass may
    torch.testing.assert_close(gradient["key.weight"], plain["key.weight"], **CLOSE)


class Normalising(TwoLayers):
    """Writes into its inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(0.5).mul_(4))


def test_a_model_that_writes_into_its_inputs_is_scored_on_what_it_was_given() -> None:
    model, other = Normalising(), TwoLayers()
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randint(0, 256, (7, 40), dtype=torch.uint8, generator=generator), rows(7)[1]
    gradient = {name: torch.ones_like(value) * 0.01 for name, value in model.named_parameters()}
    _, after = Lookahead(model, sgd(model)).losses(Batch(x, y), gradient)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.sub_(0.5 * 0.01)
        expected = F.cross_entropy(other((x / 255 - 0.5) * 4), y, reduction="none")
    torch.testing.assert_close(after, expected, **CLOSE)
    with pytest.raises(InvalidInput, match="changes its inputs in place"):
        Lookahead(model, sgd(model)).losses(Batch(rows(7)[0], y), gradient)


def test_a_look_ahead_by_factors_works_where_torch_only_infers() -> None:
    model = TwoLayers()
    x, y = rows()
    noting, stepped = linear_uses(parts_of(model, sgd(model))), parts_of(model, sgd(model)).stepped
    with noting:
        loss = F.cross_entropy(model(x), y)
    with noting as uses:
        gradient = gradient_of(loss, stepped, uses)
    expected = Lookahead(model, sgd(model)).losses(Batch(x, y), gradient)
    with torch.inference_mode():
        found = Lookahead(model, sgd(model)).losses(Batch(x, y), gradient)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_a_head_tied_to_an_embedding_is_foreseen() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            scores: Tensor = self.head(self.embedding(x).mean(1))
            return scores

    model = Tied()
    batch = Batch(torch.randint(0, 9, (5, 3)), torch.randint(0, 9, (5,)))
    gradient = {"embedding.weight": torch.randn(9, 6)}
    before, after = Lookahead(model, sgd(model), layers="head").losses(batch, gradient)
    assert not torch.equal(before, after)


def test_sparse_gradients_are_stepped_along() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(20, 8, sparse=True), nn.Linear(8, 4))
    literal, x, y = copy.deepcopy(model), torch.randint(0, 20, (5, 3)), rows()[1]
    F.cross_entropy(literal(x), y).backward()
    sgd(literal).step()
    Finetune(model, sgd(model)).observe(x, y)
    for expected, found in zip(literal.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)


# ------------------------------------------------------------------------------------------------------------ modes


class Merging(nn.Linear):
    """Low-rank factors that are added into the weight for prediction, and taken out again for training."""

    def __init__(self) -> None:
        super().__init__(40, 60)
        self.weight.requires_grad_(False)
        self.merged = False
        self.a, self.b = nn.Parameter(torch.randn(4, 40)), nn.Parameter(torch.randn(60, 4))

    def train(self, mode: bool = True) -> Merging:
        super().train(mode)
        if mode == self.merged:
            self.weight.data += (-1 if mode else 1) * self.b.data @ self.a.data
            self.merged = not mode
        return self

    def forward(self, input: Tensor) -> Tensor:
        output = F.linear(input, self.weight, self.bias)
        return output if self.merged else output + input @ self.a.t() @ self.b.t()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", [training_mode, scoring_mode, evaluation_mode])
def test_a_model_that_acts_on_its_mode_is_back_in_it(mode: Callable[..., Any], training: bool) -> None:
    model = nn.Sequential(Merging(), nn.ReLU(), nn.Linear(60, 4)).train(training)
    first = model[0]
    assert isinstance(first, Merging)
    with mode(model):
        assert first.training or mode is not training_mode
    assert first.merged is not training
    assert all(module.training is training for module in model.modules())


def test_prediction_does_not_stop_such_a_model_from_learning() -> None:
    model = nn.Sequential(Merging(), nn.ReLU(), nn.Linear(60, 4))
    learner, (x, y) = Finetune(model, sgd(model, 0.01)), rows()
    learner.predict(x)
    before = model.get_parameter("0.a").detach().clone()
    learner.observe(x, y)
    assert not torch.equal(model.get_parameter("0.a"), before)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_model_drops_out_again_after_prediction() -> None:
    model = torch.jit.script(nn.Sequential(nn.Linear(40, 60), nn.Dropout(0.5), nn.Linear(60, 4)))
    learner, (x, _) = Finetune(model, sgd(model)), rows()
    learner.predict(x)
    assert model.training
    assert not torch.equal(model(x), model(x))


# ---------------------------------------------------------------------------------------- batch-norm, buffers, splits


def _untracked(norm: nn.BatchNorm2d) -> None:
    norm.track_running_stats = False


def _unbiased(norm: nn.BatchNorm2d) -> None:
    norm.register_parameter("bias", None)


def _uncounted(norm: nn.BatchNorm2d) -> None:
    norm.num_batches_tracked = None


@pytest.mark.parametrize("change", [_untracked, _unbiased, _uncounted])
def test_batch_norm_by_lines_keeps_to_the_state_that_it_finds(change: Callable[[nn.BatchNorm2d], None]) -> None:
    ours, theirs = nn.BatchNorm2d(20), nn.BatchNorm2d(20)
    x = torch.randn(4, 20, 6, 6).contiguous(memory_format=torch.channels_last)
    change(ours)
    change(theirs)
    with torch.no_grad():
        expected = theirs(x)
        with by_lines([ours]):
            found = ours(input=x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for name, value in theirs.named_buffers():
        torch.testing.assert_close(ours.get_buffer(name), value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("grows", [False, True])
def test_buffers_that_a_refused_batch_made_are_gone(grows: bool) -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(40, 4)
            self.register_buffer("mask", torch.ones(2) if grows else None)

        def forward(self, x: Tensor) -> Tensor:
            self.mask = torch.ones(x.shape[1])
            scores: Tensor = self.layer(x * self.mask)
            return scores

    calls: list[int] = []

    def loss(scores: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("refused")
        return F.cross_entropy(scores, y, reduction="none")

    model = Cached()
    before = copy.deepcopy(model.state_dict())
    learner = Finetune(model, sgd(model), loss=loss, updates=2)
    with pytest.raises(ValueError, match="refused"):
        learner.observe(*rows())
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert learner.moves == 0


class Split(nn.Module):
    def __init__(self, first: nn.Linear) -> None:
        super().__init__()
        self.inner, self.output = first, nn.Linear(40, 4)

    @property
    def first(self) -> nn.Linear:
        return self.inner

    def rest(self, activations: Tensor) -> Tensor:
        scores: Tensor = self.output(F.linear(activations.tanh(), self.inner.weight.t()))
        return scores

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.inner(x))


def test_a_model_that_does_not_split_where_it_says_is_told() -> None:
    class Standardised(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return F.linear(input, self.weight - self.weight.mean(), self.bias)

    x, y = rows()
    odd = Split(Standardised(40, 30))
    assert not can_stay(odd, sgd(odd), x)
    plain = Split(nn.Linear(40, 30))
    assert can_stay(plain, sgd(plain), x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not can_stay(plain, sgd(plain), x)
    steps = SameRows(plain, sgd(plain), x)
    with pytest.raises(InvalidInput, match="rest uses the weight of `first` again"):
        steps.step(F.cross_entropy(steps.forward(), y))
