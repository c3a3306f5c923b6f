"""Models that do what few models do: hooks, own gradients, tied or merged weights, buffers that come and go."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rehearse import Batch, Finetune, GenerativeReplay, MostInterfered, Replay, ReservoirMemory
from rehearse.errors import InvalidInput, InvalidType
from rehearse.network import NamedGradient
from sameness import assert_same, frozen

CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}


def samples(n: int = 5, seed: int = 0) -> tuple[Tensor, Tensor]:
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
        logits: Tensor = self.head(self.inner(x).relu())
        return logits


class ScaledGradient(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: 0.1 * gradient)
        logits: Tensor = self.head(hidden.relu())
        return logits


class Energy(TwoLayers):
    """Its output is the gradient of an energy with respect to the inputs."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.head(self.inner(x).tanh()).square().sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]


class Keywords(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(input=self.inner(input=x).relu())
        return logits


class Checkpointed(TwoLayers):
    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(checkpoint(self.inner, x, use_reentrant=False).relu())
        return logits


class ReadsItsWeight(TwoLayers):
    """Divides by the norm of a weight, which autograd is not to see."""

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.inner(x).relu()) / self.head.weight.norm(dim=1).detach()
        return logits


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
    literal, (x, y) = copy.deepcopy(model), samples()
    optimizer = sgd(literal)
    F.cross_entropy(literal(x), y).backward()
    optimizer.step()
    Finetune(model, sgd(model)).observe(x, y)
    for expected, found in zip(literal.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, **CLOSE)


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("kind", UNUSUAL)
def test_the_look_ahead_is_what_the_step_does(kind: type[nn.Module]) -> None:
    model = kind()
    (x, y), (stored_x, stored_y) = samples(), samples(7, 1)
    literal = copy.deepcopy(model)
    optimizer = sgd(literal)
    F.cross_entropy(literal(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        expected = [F.cross_entropy(each(stored_x), stored_y, reduction="none") for each in (model, literal)]
    learner = Replay(model, sgd(model), ReservoirMemory(9))
    gradient = learner.plain.virtual_gradient(Batch(x, y)).gradient
    found = learner.plain.losses(Batch(stored_x, stored_y), gradient)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert not any("forward" in vars(module) for module in model.modules())


def test_a_penalty_on_the_gradient_can_be_learned_from() -> None:
    model = TwoLayers()

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        losses = F.cross_entropy(logits, y, reduction="none")
        slopes = torch.autograd.grad(losses.mean(), list(model.parameters()), create_graph=True)
        return losses + sum(slope.square().sum() for slope in slopes)

    literal, (x, y) = copy.deepcopy(model), samples()
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

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        if len(teachers) < 4:
            teachers.append(copy.deepcopy(model))
        return F.cross_entropy(logits, y, reduction="none")

    start, learner = copy.deepcopy(model), Replay(model, sgd(model), ReservoirMemory(50), MostInterfered(10), loss=loss)
    for seed in range(6):
        learner.observe(*samples(5, seed))
    x, _ = samples(9, 9)
    assert torch.equal(teachers[0](x), start(x))
    assert not any("forward" in vars(module) for teacher in teachers for module in teacher.modules())


class Normalizing(TwoLayers):
    """Writes into its inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.sub_(0.5).mul_(4))


def test_a_model_that_changes_its_inputs_in_place_is_refused() -> None:
    model, (x, y) = Normalizing(), samples()
    learner, given = Replay(model, sgd(model), ReservoirMemory(20)), x.clone()
    before = frozen(learner.state_dict())
    for call in (lambda: learner.observe(x, y), lambda: learner.predict(x)):
        with pytest.raises(InvalidInput, match="changes its inputs in place"):
            call()
        assert torch.equal(x, given)
    assert_same(learner.state_dict(), before)


def test_a_head_tied_to_an_embedding_has_a_look_ahead() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(self.embedding(x).mean(1))
            return logits

    model = Tied()
    batch = Batch(torch.randint(0, 9, (5, 3)), torch.randint(0, 9, (5,)))
    gradient = NamedGradient({"embedding.weight": torch.randn(9, 6)})
    learner = Replay(model, sgd(model), ReservoirMemory(9))
    before, after = learner.plain.losses(batch, gradient, layers="head")
    assert not torch.equal(before, after)


def test_sparse_gradients_are_stepped_along() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(20, 8, sparse=True), nn.Linear(8, 4))
    literal, x, y = copy.deepcopy(model), torch.randint(0, 20, (5, 3)), samples()[1]
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


def test_prediction_does_not_stop_such_a_model_from_learning() -> None:
    model = nn.Sequential(Merging(), nn.ReLU(), nn.Linear(60, 4))
    learner, (x, y) = Finetune(model, sgd(model, 0.01)), samples()
    learner.predict(x)
    before = model.get_parameter("0.a").detach().clone()
    learner.observe(x, y)
    assert not torch.equal(model.get_parameter("0.a"), before)


# ---------------------------------------------------------------------------------------- batch-norm, buffers, splits


@pytest.mark.parametrize("grows", [False, True])
def test_buffers_that_a_refused_batch_made_are_gone(grows: bool) -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(40, 4)
            self.register_buffer("mask", torch.ones(2) if grows else None)

        def forward(self, x: Tensor) -> Tensor:
            self.mask = torch.ones(x.shape[1])
            logits: Tensor = self.layer(x * self.mask)
            return logits

    calls: list[int] = []

    def loss(logits: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("refused")
        return F.cross_entropy(logits, y, reduction="none")

    model = Cached()
    before = copy.deepcopy(model.state_dict())
    learner = Finetune(model, sgd(model), loss=loss, updates=2)
    with pytest.raises(ValueError, match="refused"):
        learner.observe(*samples())
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert learner.progress.steps == 0


@pytest.mark.parametrize("name", ["0.weight", "0.bias"])
def test_a_hook_on_a_parameter_is_called(name: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, 4))
    parameter = dict(model.named_parameters())[name]
    parameter.register_hook(torch.zeros_like)
    before = {key: value.detach().clone() for key, value in model.named_parameters()}
    Replay(model, sgd(model), ReservoirMemory(9)).observe(*samples())
    assert torch.equal(parameter, before[name])
    assert not torch.equal(model[2].weight, before["2.weight"])


def test_a_layer_that_is_used_twice_has_the_look_ahead_of_both_uses() -> None:
    torch.manual_seed(0)
    shared = nn.Linear(40, 40)
    model = nn.Sequential(shared, nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 4))
    model[2].weight, model[2].bias = shared.weight, shared.bias
    learner, (x, y) = Replay(model, sgd(model, 0.1), ReservoirMemory(9)), samples()
    literal = copy.deepcopy(model)
    F.cross_entropy(literal(x), y).backward()
    sgd(literal, 0.1).step()
    engine = learner.plain.fastest(x)
    with learner.network.training():
        gradient = engine.gradient(Batch(x, y), replayed=False).gradient
    _, after = engine.losses(Batch(x, y), gradient)
    torch.testing.assert_close(after, F.cross_entropy(literal(x), y, reduction="none").detach(), rtol=1e-4, atol=1e-5)


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:`torch.jit")
@pytest.mark.usefixtures("process_group")
def test_wrapped_and_scripted_models_are_refused() -> None:
    """Copies of a distributed model would be trained apart, without a word; scripted ones fail in the middle."""
    x, plain = samples()[0], nn.Linear(40, 4)
    wrapped = [nn.DataParallel(plain), nn.parallel.DistributedDataParallel(plain)]
    scripted = [torch.jit.script(plain), torch.jit.trace(plain, x)]
    for models, advice in ((wrapped, "model.module"), (scripted, "plain module")):
        for model in models:
            with pytest.raises(InvalidType, match=advice):
                Finetune(model, sgd(plain))
            with pytest.raises(InvalidType, match=r"part '1' of the model"):
                Finetune(nn.Sequential(nn.Identity(), model), sgd(plain))
            with pytest.raises(InvalidType, match="generator"):
                GenerativeReplay(plain, sgd(plain), model, sgd(plain))


def test_hooks_that_would_never_run_are_refused() -> None:
    """Gradients are not accumulated in `.grad`; a hook on the gradient itself does run."""
    model, seen = nn.Linear(40, 4), list[Tensor]()
    handle = model.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    with pytest.raises(InvalidInput, match=r"'weight'.*register_hook"):
        Finetune(model, sgd(model))
    handle.remove()
    model.weight.register_hook(seen.append)
    Finetune(model, sgd(model)).observe(*samples())
    assert len(seen) == 1


def test_an_optimizer_that_is_assigned_is_the_one_that_looks_ahead() -> None:
    def learner(rate: float) -> Replay:
        model = TwoLayers()
        made = Replay(model, sgd(model, rate), ReservoirMemory(9), MostInterfered(virtual_step="optimizer"), budget=3)
        made.remember([(*samples(9, 1), 0)])
        return made

    changed, expected = learner(0.5), learner(0.01)
    changed.optimizer = sgd(changed.model, 0.01)
    x, y = samples(5, 2)
    assert_same(changed.diagnose(x, y, 1).after, expected.diagnose(x, y, 1).after)
    assert not torch.equal(changed.diagnose(x, y, 1).after, learner(0.5).diagnose(x, y, 1).after)
    one, other = (made.observe(x, y, 1).interference for made in (changed, expected))
    assert_same(one, other)
    assert_same(changed.model.state_dict(), expected.model.state_dict())
