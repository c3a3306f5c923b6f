"""The engine for chains of linear layers against the plain engine and against textbook steps on deep copies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse import Batch, Finetune, MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.errors import InvalidInput, NotFinite
from rehearse.fast.dense import Dense, Factors
from rehearse.losses import AsymmetricCrossEntropy, CrossEntropy
from rehearse.nets import MLP

Build = Callable[[], nn.Module]
Optimizer = Callable[[nn.Module], torch.optim.Optimizer]


def chain(*, flatten: bool = False) -> nn.Sequential:
    torch.manual_seed(3)
    layers = [nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 30), nn.ReLU(), nn.Linear(30, 5)]
    return nn.Sequential(*([nn.Flatten()] if flatten else []), *layers)


def nested() -> nn.Module:
    torch.manual_seed(3)
    return MLP(20, (40, 30), 5)


def samples(n: int, seed: int, shape: tuple[int, ...] = (20,)) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, *shape, generator=generator), torch.randint(0, 5, (n,), generator=generator)


def stream(batches: int = 25, shape: tuple[int, ...] = (20,)) -> list[tuple[Tensor, Tensor, int]]:
    return [(*samples(5, number, shape), number // 8) for number in range(batches)]


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.05, **options})


def by_layer(model: nn.Module) -> torch.optim.Optimizer:
    """Return an optimizer with another rate for each layer."""
    linears = [module for module in model.modules() if isinstance(module, nn.Linear)]
    groups = [{"params": own.parameters(), "lr": 0.02 * (number + 1)} for number, own in enumerate(linears)]
    return torch.optim.SGD(groups, lr=0.01)


@contextmanager
def without_fast() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REHEARSE_FAST", "0")
        yield


def replay(model: Build = chain, optimizer: Optimizer = sgd, retrieval: Any = None, **options: Any) -> Replay:
    made = model()
    retrieval = retrieval or MostInterfered(15)
    return Replay(made, optimizer(made), ReservoirMemory(40), retrieval, budget=4, **options)


def is_dense(learner: Any, x: Tensor) -> bool:
    return isinstance(learner.plain.fastest(x), Dense)


def assert_equal_runs(build: Callable[[], Replay | Finetune], batches: list[tuple[Tensor, Tensor, int]]) -> None:
    """Let a fast and a plain learner observe the same stream: retrieved slots are equal, losses to 1e-6."""
    fast = build()
    with without_fast():
        plain = build()
    assert is_dense(fast, batches[0][0])
    assert not is_dense(plain, batches[0][0])
    for x, y, task in batches:
        one, other = fast.observe(x, y, task), plain.observe(x, y, task)
        assert one.incoming_loss == pytest.approx(other.incoming_loss, rel=1e-6, abs=1e-6)
        assert (one.replayed is None) == (other.replayed is None)
        if one.replayed is not None and other.replayed is not None:
            assert one.replayed.slots is not None
            assert other.replayed.slots is not None
            assert one.replayed.slots.tolist() == other.replayed.slots.tolist()
            assert one.replayed_loss == pytest.approx(other.replayed_loss, rel=1e-6, abs=1e-6)
        if one.interference is not None and other.interference is not None:
            torch.testing.assert_close(one.interference, other.interference, rtol=1e-4, atol=2e-6)
    for mine, theirs in zip(fast.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    assert fast.samples_passed == plain.samples_passed


OPTIMIZERS: dict[str, Optimizer] = {
    "sgd": sgd,
    "by layer": by_layer,
    "maximize": lambda model: sgd(model, lr=0.002, maximize=True),
    "momentum": lambda model: sgd(model, momentum=0.9, nesterov=True),
    "decay": lambda model: sgd(model, weight_decay=0.1),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.002),
}
RETRIEVALS: dict[str, Callable[[], Any]] = {
    "mi1": lambda: MostInterfered(15),
    "mi2": lambda: MostInterfered(15, "mi2"),
    "all": lambda: MostInterfered(None),
    "head": lambda: MostInterfered(15, layers="head"),
    "optimizer": lambda: MostInterfered(15, virtual_step="optimizer"),
    "joint": Uniform,
    "candidates": lambda: Uniform(15),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("retrieval", ["mi2", "head", "optimizer", "joint"])
def test_every_optimizer(optimizer: str, retrieval: str) -> None:
    assert_equal_runs(lambda: replay(chain, OPTIMIZERS[optimizer], RETRIEVALS[retrieval]()), stream())


@pytest.mark.parametrize("options", [{"updates": 2}, {"replay_weight": 0.5}, {"clip": 0.1}], ids=str)
@pytest.mark.parametrize("retrieval", RETRIEVALS)
def test_every_retrieval(retrieval: str, options: dict[str, Any]) -> None:
    assert_equal_runs(lambda: replay(nested, sgd, RETRIEVALS[retrieval](), **options), stream())


@pytest.mark.parametrize("shape", [(20,), (4, 5), (1, 4, 5)], ids=str)
@pytest.mark.parametrize("retrieval", ["mi1", "joint"])
def test_inputs_of_any_shape_are_flattened_by_the_models_first_layer(shape: tuple[int, ...], retrieval: str) -> None:
    def build() -> Replay:
        return replay(lambda: chain(flatten=True), sgd, RETRIEVALS[retrieval]())

    assert_equal_runs(build, stream(shape=shape))


@pytest.mark.parametrize("updates", [1, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "by layer", "adam"])
def test_finetune(optimizer: str, updates: int) -> None:
    def build() -> Finetune:
        model = chain()
        return Finetune(model, OPTIMIZERS[optimizer](model), updates=updates)

    assert_equal_runs(build, stream())


def one_relu_everywhere() -> nn.Module:
    torch.manual_seed(3)
    relu = nn.ReLU()
    return nn.Sequential(nn.Linear(20, 40), relu, nn.Sequential(nn.Linear(40, 30), relu), nn.Linear(30, 5))


def test_a_relu_that_is_used_several_times() -> None:
    assert_equal_runs(lambda: replay(one_relu_everywhere), stream())


@pytest.mark.parametrize("layers", ["the output is rectified", "a layer is used twice"])
def test_repeated_modules_that_make_another_function(layers: str) -> None:
    torch.manual_seed(3)
    relu, again = nn.ReLU(), nn.Linear(5, 5)
    model = nn.Sequential(nn.Linear(20, 5), relu, again, relu, *([again] if "twice" in layers else []))
    x, y = samples(8, 0)
    learner, expected = Finetune(model, sgd(model)), F.cross_entropy(model(x), y).item()
    assert not is_dense(learner, x)
    assert learner.observe(x, y).incoming_loss == pytest.approx(expected, rel=1e-6)


def test_batches_go_where_the_network_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *device: False)  # torch knows no autocast for meta
    learner = replay(lambda: chain().to("meta"))
    engine = learner.plain.fastest(torch.empty(6, 20, device="meta"))
    assert isinstance(engine, Dense)
    sizes = [20, 40, 30, 5]
    rows = [torch.zeros(6, size, device="meta") for size in sizes]
    for losses in engine.losses(Batch(*samples(4, 0)), Factors(rows[:3], rows[1:])):
        assert losses.device.type == "meta"


def test_bytes_and_batches_of_every_size() -> None:
    batches = [((x[:n] * 40).to(torch.uint8), y[:n], task) for n, (x, y, task) in zip([1, 5, 3, 2] * 5, stream(20))]
    assert_equal_runs(replay, batches)


# ------------------------------------------------------------------------------------------------- textbook steps


def textbook(learner: Replay, x: Tensor, y: Tensor, task: int, lr: float) -> tuple[Tensor, float, float, nn.Module]:
    """Return the slots of Algorithm 1, both losses and the stepped model, computed with deep copies and autograd."""
    drawn = copy.deepcopy(learner.memory).sample(15, exclude_task=task, ordered=True)
    assert drawn.slots is not None
    model, ahead = copy.deepcopy(learner.model), copy.deepcopy(learner.model)
    loss = F.cross_entropy(ahead(x), y)
    loss.backward()
    torch.optim.SGD(ahead.parameters(), lr=lr).step()
    with torch.no_grad():
        rise = F.cross_entropy(ahead(drawn.x), drawn.y, reduction="none")
        rise -= F.cross_entropy(model(drawn.x), drawn.y, reduction="none")
    chosen = drawn.take(rise.sort(descending=True, stable=True).indices[:4])
    replayed = F.cross_entropy(model(chosen.x), chosen.y)
    (F.cross_entropy(model(x), y) + replayed).backward()
    torch.optim.SGD(model.parameters(), lr=lr).step()
    assert chosen.slots is not None
    return chosen.slots, loss.item(), replayed.item(), model


@pytest.mark.parametrize("build", [chain, nested], ids=["chain", "nested"])
def test_a_step_is_that_of_the_textbook(build: Build) -> None:
    learner = replay(build, sgd, MostInterfered(15))
    compared = 0
    for x, y, task in stream(120):
        if not learner.memory.eligible(task):
            learner.observe(x, y, task)
            continue
        slots, loss, replayed_loss, model = textbook(learner, x, y, task, 0.05)
        step = learner.observe(x, y, task)
        assert step.replayed is not None
        assert step.replayed.slots is not None
        assert step.replayed.slots.tolist() == slots.tolist()
        assert step.incoming_loss == pytest.approx(loss, abs=1e-6)
        assert step.replayed_loss == pytest.approx(replayed_loss, abs=1e-6)
        for mine, theirs in zip(learner.model.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
        compared += 1
    assert compared > 100


def test_the_gradient_of_cross_entropy() -> None:
    logits = torch.randn(7, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    batch = replay().memory
    batch.add(torch.zeros(7, 1), torch.tensor([0, 4, 2, 2, 1, 0, 3]))
    losses, gradient = CrossEntropy().with_gradient(logits.detach(), batch.all(), False)
    expected = CrossEntropy()(logits, batch.all(), False)
    torch.testing.assert_close(losses, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected.mean(), logits)[0])


def test_a_gradient_is_read_by_name_and_losses_need_none() -> None:
    learner, (x, y) = replay(), samples(5, 0)
    engine, batch = learner.plain.fastest(x), Batch(x, y)
    assert isinstance(engine, Dense)
    with torch.enable_grad():
        fast, plain = (one.gradient(batch, replayed=False).gradient for one in (engine, learner.plain))
    assert learner.plain.named(plain) is plain
    assert engine.named(fast).keys() == plain.keys() == dict(learner.model.named_parameters()).keys()
    for name, value in engine.named(fast).items():
        torch.testing.assert_close(value, plain[name])
    passed = learner.samples_passed
    now, again = engine.losses(batch)
    assert learner.samples_passed == passed + len(x)  # one pass
    assert torch.equal(now, again)
    torch.testing.assert_close(now, F.cross_entropy(learner.model(x), y, reduction="none").detach())


def test_the_norm_of_factors_is_an_upper_bound() -> None:
    learner = replay()
    engine = learner.plain.fastest(samples(5, 0)[0])
    learner.memory.add(*samples(5, 0))
    gradient = engine.gradient(learner.memory.all(), replayed=False).gradient
    exact = learner.plain.gradient(learner.memory.all(), replayed=False).gradient
    assert exact.norm() <= gradient.norm() < 100 * exact.norm()


# ------------------------------------------------------------------------------------------- when it does not apply


class Doubled(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def changed(change: Callable[[Any], Any]) -> Build:
    def build() -> nn.Module:
        model = chain()
        change(model)
        return model

    return build


def tied() -> nn.Module:
    shared = nn.Linear(20, 20)
    return nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), nn.Linear(20, 5))


def patched(model: nn.Sequential) -> None:
    model[2].forward = lambda x: F.linear(x, model[2].weight)


def do_nothing(*arguments: Any) -> None:
    """A hook."""


NO_CHAINS: dict[str, Build] = {
    "linear": lambda: nn.Linear(20, 5),
    "tanh": lambda: nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 5)),
    "dropout": lambda: nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 5)),
    "ReLU at the end": lambda: nn.Sequential(nn.Linear(20, 5), nn.ReLU()),
    "ReLU at the start": lambda: nn.Sequential(nn.ReLU(), nn.Linear(20, 5)),
    "no ReLU": lambda: nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 5)),
    "no bias": lambda: nn.Sequential(nn.Linear(20, 8, bias=False), nn.ReLU(), nn.Linear(8, 5)),
    "other forward": lambda: Doubled(nn.Linear(20, 5)),
    "other forward inside": lambda: nn.Sequential(Doubled(nn.Linear(20, 5))),
    "parametrized": lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(20, 5))),
    "patched": changed(patched),
    "tied": tied,
    "forward hook": changed(lambda model: model[0].register_forward_hook(do_nothing)),
    "pre-hook": changed(lambda model: model[0].register_forward_pre_hook(do_nothing)),
    "backward hook": changed(lambda model: model[2].register_full_backward_hook(do_nothing)),
    "hook of the model": changed(lambda model: model.register_forward_hook(do_nothing)),
    "hook of a weight": changed(lambda model: model[0].weight.register_hook(lambda gradient: 2 * gradient)),
    "hook of a bias": changed(lambda model: model[4].bias.register_hook(lambda gradient: 2 * gradient)),
    "frozen": changed(lambda model: model[0].requires_grad_(False)),
    "frozen weight": changed(lambda model: model[4].weight.requires_grad_(False)),
}


@pytest.mark.parametrize("name", NO_CHAINS)
def test_other_models_are_left_to_the_plain_engine(name: str) -> None:
    learner = replay(NO_CHAINS[name])
    assert not is_dense(learner, samples(5, 0)[0])
    with without_fast():
        plain = replay(NO_CHAINS[name])
    plain.load_state_dict(learner.state_dict())
    for x, y, task in stream(10):
        assert learner.observe(x, y, task).incoming_loss == plain.observe(x, y, task).incoming_loss


@pytest.mark.parametrize(
    ("options", "optimizer"),
    [
        ({"precision": "bfloat16"}, sgd),
        ({"precision": "bfloat16-scoring"}, sgd),
        ({"loss": AsymmetricCrossEntropy()}, sgd),
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, sgd),
        ({}, lambda model: torch.optim.SGD([*model.parameters()][2:], lr=0.1)),
        ({}, lambda model: torch.optim.SGD([{"params": [p], "lr": 0.1 + p.ndim} for p in model.parameters()])),
    ],
    ids=["bfloat16", "scoring", "ACE", "own loss", "not all layers", "biases apart"],
)
def test_other_settings_are_left_to_the_plain_engine(options: dict[str, Any], optimizer: Optimizer) -> None:
    learner = replay(chain, optimizer, **options)
    assert not is_dense(learner, samples(5, 0)[0])
    for x, y, task in stream(10):
        learner.observe(x, y, task)


def test_inputs_that_the_chain_does_not_flatten_are_left_to_the_plain_engine() -> None:
    x, y = samples(5, 0)
    learner = replay()
    assert not is_dense(learner, x.view(5, 4, 5))
    assert not is_dense(learner, (x,))
    with pytest.raises(InvalidInput):
        learner.observe(x.view(5, 4, 5), y)
    learner.observe((x,), y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not is_dense(learner, x)


def test_changes_of_the_model_are_noticed_at_the_next_step() -> None:
    learner, (x, y) = replay(), samples(5, 0)
    assert is_dense(learner, x)
    seen: list[int] = []
    hook = learner.model[0].register_forward_hook(lambda *_: seen.append(1))  # type: ignore[index, operator]
    learner.observe(x, y)
    assert seen
    hook.remove()
    assert is_dense(learner, x)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: seen.append(2))
    try:
        assert not is_dense(learner, x)
    finally:
        handle.remove()
    learner.model[0].weight.requires_grad_(False)  # type: ignore[index, union-attr, operator]
    before = learner.model.get_parameter("0.weight").detach().clone()
    learner.observe(x, y)
    assert torch.equal(learner.model.get_parameter("0.weight"), before)


def test_a_new_learning_rate_is_used_at_once() -> None:
    fast = replay()
    with without_fast():
        plain = replay()
    for number, (x, y, task) in enumerate(stream(20)):
        for learner in (fast, plain):
            learner.optimizer.param_groups[0]["lr"] = 0.01 * (number % 4)
            learner.observe(x, y, task)
    for mine, theirs in zip(fast.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_what_is_refused_is_refused_in_the_same_words() -> None:
    fast = replay()
    with without_fast():
        plain = replay()
    for learner in (fast, plain):
        with pytest.raises(InvalidInput, match="the model cannot take this batch"):
            learner.observe(torch.randn(5, 21), torch.zeros(5, dtype=torch.long))
        with pytest.raises(NotFinite):
            learner.observe(torch.full((5, 20), 1e38), torch.zeros(5, dtype=torch.long))
    flat = nn.Sequential(nn.Flatten(), nn.Linear(20, 3))
    learner = Replay(flat, torch.optim.SGD(flat.parameters(), lr=0.1), ReservoirMemory(10))
    with pytest.raises(InvalidInput, match=r"inputs of shape \(8, 3, 9, 9\)"):
        learner.observe(torch.randn(8, 3, 9, 9), torch.zeros(8, dtype=torch.long))
