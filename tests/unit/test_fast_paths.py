"""Fast paths give what the plain ones give: gradients as factors, corrected layers, direct steps, compiled scoring.

The choices of ER-MIR are held against benchmarks/literal.py, the textbook step, which shares no code with the package.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse.batch import Batch
from rehearse.compiled import compiler_at_hand
from rehearse.gradients import (
    FactoredGradient,
    Gradient,
    add_gradients,
    gradient_norm,
    gradient_of,
    is_plain_sgd,
    linear_uses,
    sgd_step,
)
from rehearse.learners import Replay
from rehearse.learners.step import step_along
from rehearse.lookahead import Lookahead
from rehearse.memory import ReservoirMemory
from rehearse.nets import MLP, ReducedResNet18
from rehearse.parts import parts_of
from rehearse.retrieval import MostInterfered

CLOSE = {"rtol": 1e-4, "atol": 1e-6}


def load_literal() -> ModuleType:
    file = Path(__file__).parents[2] / "benchmarks" / "literal.py"
    spec = importlib.util.spec_from_file_location("literal", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["literal"] = module
    spec.loader.exec_module(module)
    return module


literal = load_literal()


# ----------------------------------------------------------------------------------------------------------- models


class TiedAutoencoder(nn.Module):
    """The decoder uses the encoder's weight without calling the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(40, 50)
        self.head = nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(F.linear(self.encoder(x).relu(), self.encoder.weight.t()))
        return scores


class Twice(nn.Module):
    """One layer used twice, and its weight shared with another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(40, 40)
        self.second = nn.Linear(40, 40)
        self.second.weight = self.first.weight
        self.head = nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.second(self.first(self.first(x).relu()).relu()).tanh())
        return scores


class OnlyWhenTraining(nn.Module):
    """In eval mode the weight is used without its layer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(40, 40)
        self.head = nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.inner(x) if self.training else F.linear(x, self.inner.weight, self.inner.bias)
        scores: Tensor = self.head(hidden.relu())
        return scores


def chain(*middle: nn.Module, bias: bool = True) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Linear(40, 60, bias=bias), *copy.deepcopy(middle), nn.Linear(60, 50), nn.Linear(50, 4)
    )


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: MLP(40, (60, 50), 4),
    "in place": chain(nn.ReLU(inplace=True)),
    "without bias": chain(nn.ReLU(), bias=False),
    "batch-norm": chain(nn.BatchNorm1d(60), nn.ReLU()),
    "normalised input": lambda: nn.Sequential(nn.LayerNorm(40, elementwise_affine=False), chain(nn.ReLU())()),
    "tied": TiedAutoencoder,
    "twice": Twice,
    "only when training": OnlyWhenTraining,
}


def rows(n: int, seed: int, features: int = 40) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    return Batch(
        torch.randn(n, features, generator=generator),
        torch.randint(0, 4, (n,), generator=generator),
        slots=torch.arange(n),
    )


def made(name: str, lr: float = 0.3) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = MODELS[name]()
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def both_gradients(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch) -> tuple[Gradient, Gradient]:
    """The factored one, and the one that autograd multiplies out."""
    stepped = parts_of(model, optimizer).stepped
    plain = gradient_of(F.cross_entropy(model(batch.x), batch.y), stepped)
    with linear_uses(parts_of(model, optimizer)) as uses:
        factored = gradient_of(F.cross_entropy(model(batch.x), batch.y), stepped, uses)
    return factored, plain


def assert_same(first: Gradient, second: Gradient) -> None:
    assert set(first) == set(second)
    for name in second:
        torch.testing.assert_close(first[name], second[name], **CLOSE)


# -------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("name", MODELS)
def test_a_factored_gradient_is_the_gradient(name: str) -> None:
    model, optimizer = made(name)
    factored, plain = both_gradients(model, optimizer, rows(5, 0))
    assert_same(factored, plain)
    assert len(factored) == len(plain)
    assert not any("forward" in vars(module) for module in model.modules())


def test_layers_are_factored_where_that_is_smaller() -> None:
    model, optimizer = made("mlp")
    factored, _ = both_gradients(model, optimizer, rows(5, 0))
    assert isinstance(factored, FactoredGradient)
    assert set(factored.factors) == {"body.1.weight", "body.3.weight"}  # the head has 4 × 50 weights, 5 rows of 54
    large, _ = both_gradients(model, optimizer, rows(20, 0))
    assert isinstance(large, dict)


def test_what_must_not_be_factored_is_left_to_autograd() -> None:
    model, optimizer = made("tied")
    factored, _ = both_gradients(model, optimizer, rows(5, 0))
    assert isinstance(factored, FactoredGradient)
    assert "encoder.weight" not in factored.factors  # its other use had a gradient too
    model, optimizer = made("mlp")
    model.requires_grad_(False)
    model.get_submodule("head").requires_grad_(True)
    factored, plain = both_gradients(model, optimizer, rows(5, 0))
    assert set(factored) == set(plain) == {"head.weight", "head.bias"}


def test_an_input_changed_after_its_use_is_refused() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(40, 60), nn.Linear(60, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = x * 1
            hidden = self.inner(x)
            x.zero_()
            scores: Tensor = self.head(hidden)
            return scores

    model = Changing()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = rows(5, 0)
    with linear_uses(parts_of(model, optimizer)) as uses:
        loss = F.cross_entropy(model(batch.x), batch.y)
        with pytest.raises(ValueError, match="changed in place"):
            gradient_of(loss, parts_of(model, optimizer).stepped, uses)


@pytest.mark.parametrize("weight", [1.0, 0.0, 0.25])
@pytest.mark.parametrize("name", ["mlp", "tied", "twice"])
def test_sums_of_factored_gradients(name: str, weight: float) -> None:
    model, optimizer = made(name)
    first, plain_first = both_gradients(model, optimizer, rows(5, 0))
    second, plain_second = both_gradients(model, optimizer, rows(7, 1))
    expected = {key: plain_first[key] + weight * plain_second[key] for key in plain_first}
    assert_same(add_gradients(first, second, weight), expected)
    assert_same(add_gradients(first, plain_second, weight), expected)
    assert_same(add_gradients(dict(first), second, weight), expected)


def test_sums_of_gradients_that_lack_some_parameters() -> None:
    one, two = {"a": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(3)}
    assert_same(add_gradients(one, two, 0.5), {"a": torch.full((2,), 1.5), "b": torch.full((3,), 0.5)})
    assert_same(add_gradients(two, one, 0.5), {"a": torch.full((2,), 1.5), "b": torch.ones(3)})


def test_the_norm_of_factors_is_a_bound() -> None:
    model, optimizer = made("mlp")
    factored, plain = both_gradients(model, optimizer, rows(5, 0))
    norm = float(torch.cat([value.flatten() for value in plain.values()]).norm())
    assert gradient_norm(factored) == pytest.approx(norm, rel=1e-4)
    assert gradient_norm(factored, factored=True) >= norm
    assert gradient_norm({}) == 0


# ----------------------------------------------------------------------------------------------------------- the step


def step_both_ways(optimizer: Callable[[Any], torch.optim.Optimizer], clip: float | None = None) -> tuple[Any, Any]:
    torch.manual_seed(1)
    model = MODELS["mlp"]()
    twin = copy.deepcopy(model)
    mine, other = optimizer(model.parameters()), optimizer(twin.parameters())
    for seed in range(3):
        factored, _ = both_gradients(model, mine, rows(5, seed))
        step_along(factored, model, mine, clip)
        other.zero_grad()
        batch = rows(5, seed)
        F.cross_entropy(twin(batch.x), batch.y).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(twin.parameters(), clip)
        other.step()
    return model.state_dict(), twin.state_dict()


@pytest.mark.parametrize(
    ("optimizer", "clip"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.3), None),
        (lambda p: torch.optim.SGD(p, lr=0.3, maximize=True), None),
        (lambda p: torch.optim.SGD([{"params": [q], "lr": 0.1 * (i + 1)} for i, q in enumerate(p)], lr=0.1), None),
        (lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9, nesterov=True), None),
        (lambda p: torch.optim.SGD(p, lr=0.3, weight_decay=0.1), None),
        (lambda p: torch.optim.Adam(p, lr=0.01), None),
        (lambda p: torch.optim.SGD(p, lr=0.3), 0.1),
    ],
)
def test_a_step_along_factors_is_the_optimisers(optimizer: Any, clip: float | None) -> None:
    mine, other = step_both_ways(optimizer, clip)
    for name in other:
        torch.testing.assert_close(mine[name], other[name], **CLOSE)


def test_without_factors_plain_sgd_is_bit_for_bit_the_optimisers() -> None:
    model, optimizer = made("mlp")
    twin = copy.deepcopy(model)
    _, plain = both_gradients(model, optimizer, rows(5, 0))
    sgd_step(plain, parts_of(model, optimizer).stepped)
    other = torch.optim.SGD(twin.parameters(), lr=0.3)
    batch = rows(5, 0)
    F.cross_entropy(twin(batch.x), batch.y).backward()
    other.step()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_only_plain_sgd_is_plain() -> None:
    parameters = [nn.Parameter(torch.ones(2))]
    plain = torch.optim.SGD(parameters, lr=0.1)
    assert is_plain_sgd(plain)
    assert not is_plain_sgd(torch.optim.SGD(parameters, lr=0.1, momentum=0.5))
    assert not is_plain_sgd(torch.optim.SGD(parameters, lr=0.1, weight_decay=0.5))
    assert not is_plain_sgd(torch.optim.Adam(parameters))
    hooked = torch.optim.SGD(parameters, lr=0.1)
    hooked.register_step_pre_hook(lambda *_: None)
    assert not is_plain_sgd(hooked)
    torch.optim.lr_scheduler.ConstantLR(plain)  # counts the optimiser's steps
    assert not is_plain_sgd(plain)


# -------------------------------------------------------------------------------------------------------- look-ahead


@pytest.mark.parametrize("name", MODELS)
def test_the_corrected_look_ahead_is_the_plain_one(name: str) -> None:
    model, optimizer = made(name)
    factored, plain = both_gradients(model, optimizer, rows(5, 0))
    lookahead = Lookahead(model, optimizer)
    candidates = rows(30, 1)
    with torch.no_grad():
        before, after = lookahead.losses(candidates, factored)
        plain_before, plain_after = lookahead.losses(candidates, dict(plain))
    assert torch.equal(before, plain_before)
    torch.testing.assert_close(after, plain_after, **CLOSE)
    assert (after - before).abs().max() > 1e-3  # a step that nobody would see proves nothing


def test_foreseen_parameters_of_a_factored_gradient() -> None:
    model, optimizer = made("mlp", lr=0.5)
    factored, plain = both_gradients(model, optimizer, rows(5, 0))
    foreseen = Lookahead(model, optimizer).foresee(factored)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(foreseen[name], parameter - 0.5 * plain[name], **CLOSE)


# ------------------------------------------------------------------------------------------- the choice of memories


class DropoutAndBatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 80), nn.BatchNorm1d(80), nn.ReLU(), nn.Dropout(0.3), nn.Linear(80, 60))
        self.head = nn.Linear(60, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(x).relu())
        return scores


def literal_choice(learner: Replay, x: Tensor, y: Tensor, task: int, lr: float) -> tuple[Tensor, Tensor]:
    """What the textbook step recalls on the same random state, and the scores of all candidates by slot."""
    memory = copy.deepcopy(learner.memory)
    drawn = memory.sample(30, exclude_task=task)
    assert drawn.slots is not None
    slots, order = drawn.slots.sort()
    model = copy.deepcopy(learner.model).to(memory_format=torch.contiguous_format)
    with torch.random.fork_rng():
        torch.set_rng_state(learner.random.get()["cpu"])
        F.cross_entropy(model(x), y).backward()
    gradient = literal.flat_gradient(model)
    for module in model.modules():
        module.training = isinstance(module, nn.modules.batchnorm._BatchNorm)
    before, after = literal.interference(model, drawn.x[order], drawn.y[order], gradient, lr)
    scores = after - before
    by_slot = torch.full((memory.capacity,), -torch.inf)
    by_slot[slots] = scores
    return slots[scores.sort(descending=True, stable=True)[1][:8]], by_slot


def stream(shape: tuple[int, ...], batches: int) -> list[tuple[Tensor, Tensor, int]]:
    """Two classes a task, each class around a centre of its own, tasks in turns of eight batches."""
    generator = torch.Generator().manual_seed(3)
    centres = torch.randn(4, *shape, generator=generator)
    made = []
    for number in range(batches):
        task = number // 8 % 2
        y = 2 * task + torch.randint(0, 2, (8,), generator=generator)
        made.append((centres[y] + torch.randn(8, *shape, generator=generator), y, task))
    return made


@pytest.mark.parametrize(
    ("network", "shape", "batches"),
    [
        pytest.param(lambda: MLP(64, (80, 60), 4), (64,), 200, id="mlp"),
        pytest.param(DropoutAndBatchNorm, (64,), 200, id="dropout and batch-norm"),
        pytest.param(lambda: ReducedResNet18(4, base=8), (3, 32, 32), 16, id="resnet"),
    ],
)
def test_the_memories_chosen_are_those_of_the_literal_step(
    network: Callable[[], nn.Module], shape: tuple[int, ...], batches: int
) -> None:
    torch.manual_seed(0)
    model, lr = network(), 0.05
    learner = Replay(
        model,
        torch.optim.SGD(model.parameters(), lr=lr),
        ReservoirMemory(60),
        MostInterfered(30),
        budget=8,
        precision="float32",
    )
    compared = exact = 0
    for x, y, task in stream(shape, batches):
        if learner.memory.eligible(task):
            chosen, scores = literal_choice(learner, x, y, task, lr)
            recalled = learner.observe(x, y, task).recalled
            assert recalled is not None
            assert recalled.slots is not None
            # Rounding may swap two memories of the same score, and nothing else.
            torch.testing.assert_close(scores[recalled.slots], scores[chosen], rtol=1e-3, atol=1e-5)
            compared, exact = compared + 1, exact + (set(chosen.tolist()) == set(recalled.slots.tolist()))
        else:
            learner.observe(x, y, task)
    assert compared >= batches - 8
    assert exact >= 0.95 * compared


# --------------------------------------------------------------------------------------------------------- compiled


@pytest.mark.skipif(not compiler_at_hand(), reason="no C++ compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_scoring_is_eager_scoring() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 3, 8, 8, generator=generator), torch.randint(0, 4, (12,), generator=generator)
    gradient = gradient_of(F.cross_entropy(model(x[:4]), y[:4]), parts_of(model, optimizer).stepped)
    eager, compiled = Lookahead(model, optimizer), Lookahead(model, optimizer, compile_rows=12)
    for batch in (Batch(x, y), Batch(x[:5], y[:5])):  # the second one is not of the compiled size
        for mine, plain in zip(compiled.losses(batch, gradient), eager.losses(batch, gradient), strict=True):
            torch.testing.assert_close(mine, plain, **CLOSE)
        for name, statistic in eager.statistics.items():
            torch.testing.assert_close(compiled.statistics[name], statistic, **CLOSE)


def test_without_a_compiler_scoring_is_eager_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config

    monkeypatch.setattr(config.cpp, "cxx", ("/nowhere/g++",))
    model, optimizer = made("mlp")
    with pytest.warns(RuntimeWarning, match=r"no C\+\+ compiler.*g\+\+"):
        lookahead = Lookahead(model, optimizer, compile_rows=30)
    _, gradient = both_gradients(model, optimizer, rows(5, 0))
    expected = Lookahead(model, optimizer).losses(rows(30, 1), gradient)
    for mine, plain in zip(lookahead.losses(rows(30, 1), gradient), expected, strict=True):
        assert torch.equal(mine, plain)


def test_compiling_needs_a_fixed_size_and_the_whole_model() -> None:
    model, optimizer = made("mlp")
    with pytest.raises(ValueError, match="number of candidates"):
        MostInterfered(None, compile=True)
    with pytest.raises(ValueError, match="head alone"):
        Lookahead(model, optimizer, layers="head", compile_rows=30)


# ------------------------------------------------------------------------------------------------------------- parts


@pytest.mark.parametrize("name", MODELS)
def test_parts_are_what_torch_lists(name: str) -> None:
    model, optimizer = made(name)
    parts = parts_of(model, optimizer)
    assert parts.modules == list(model.modules())
    assert list(parts.stepped) == [key for key, _ in model.named_parameters()]
    assert all(parts.stepped[key][0] is parameter for key, parameter in model.named_parameters())
    assert {key: id(value) for key, value in parts.buffers().items()} == {
        key: id(value) for key, value in model.named_buffers()
    }
    assert parts.tied == (name == "twice")
    next(model.parameters()).requires_grad_(False)
    assert len(parts_of(model, optimizer).stepped) == len(parts.stepped) - 1
