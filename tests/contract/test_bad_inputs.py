"""Ten thousand calls with whatever people pass: each is learned from or refused with an error of ours, and after a
refusal the learner is to the bit what it was."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from interrupting import state_of
from small_learners import SETTINGS
from torch import Tensor, nn

from rehearse import (
    Batch,
    ClassBalancedMemory,
    Finetune,
    Learner,
    MostInterfered,
    Replay,
    ReservoirMemory,
    RingMemory,
    Uniform,
)
from rehearse.errors import RehearseError
from rehearse.learners import AGEM, GEM, ICaRL
from rehearse.losses import DarkExperience
from rehearse.memory import ExemplarMemory, TaskRingMemory

CALLS = 10_000
FEATURES, CLASSES = 3, 3


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 2), nn.Linear(2 + FEATURES, CLASSES)

    def forward(self, features: Tensor, token: Tensor) -> Tensor:
        return self.head(torch.cat([features, self.embedding(token)], 1))


def plain(outputs: int = CLASSES) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.ReLU(), nn.Linear(4, outputs))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, CLASSES))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def build(kind: str) -> Learner:
    torch.manual_seed(0)
    net, wide = plain(), plain(2)
    bn, two = normed(), TwoInputs()
    learners: dict[str, Callable[[], Learner]] = {
        "finetune": lambda: Finetune(net, sgd(net)),
        "er": lambda: Replay(net, sgd(net), ReservoirMemory(12), Uniform(), budget=4),
        "er-mir": lambda: Replay(bn, adam(bn), ReservoirMemory(12), MostInterfered(6), budget=4),
        "two updates": lambda: Replay(bn, sgd(bn), ReservoirMemory(12), MostInterfered(6, "mi2"), budget=4, updates=2),
        "joint": lambda: Replay(bn, sgd(bn), RingMemory(12), MostInterfered(6), budget=4, batchnorm="joint"),
        "recalibrated": lambda: Replay(bn, sgd(bn), RingMemory(12), budget=4, batchnorm="recalibrated"),
        "balanced": lambda: Replay(net, sgd(net), ClassBalancedMemory(12), budget=4, clip=1.0),
        "dark": lambda: Replay(net, sgd(net), ReservoirMemory(12), budget=4, loss=DarkExperience()),
        "regression": lambda: Replay(wide, sgd(wide), ReservoirMemory(12), budget=4, loss=nn.MSELoss()),
        "labels": lambda: Replay(wide, sgd(wide), ReservoirMemory(12), budget=4, loss=nn.BCEWithLogitsLoss()),
        "callable": lambda: Replay(
            wide, sgd(wide), ReservoirMemory(12), budget=4, loss=lambda logits, y: (logits - y).square().sum(1)
        ),
        "two inputs": lambda: Replay(two, adam(two), ReservoirMemory(12), budget=4),
        "agem": lambda: AGEM(net, sgd(net), TaskRingMemory(12)),
        "gem": lambda: GEM(net, sgd(net), TaskRingMemory(12)),
        "icarl": lambda: ICaRL(bn, sgd(bn), ExemplarMemory(12), budget=4),
    }
    return learners[kind]()


KINDS = [
    "finetune", "er", "er-mir", "two updates", "joint", "recalibrated", "balanced", "dark", "regression", "labels",
    "callable", "two inputs", "agem", "gem", "icarl",
]  # fmt: skip


class Chance:
    """Good values most of the time, so that learners get somewhere, and every kind of bad one in between."""

    def __init__(self, seed: int, kind: str) -> None:
        self.numpy, self.kind = np.random.default_rng(seed), kind

    def choose(self, *options: Any) -> Any:
        return options[int(self.numpy.integers(len(options)))]

    def often(self, probability: float) -> bool:
        return bool(self.numpy.random() < probability)

    def samples(self) -> int:
        return int(self.choose(0, 1, 1, 2, 3, 5, 5, 8, 30))

    def tensor(self, *shape: int) -> Tensor:
        return torch.from_numpy(self.numpy.normal(size=shape)).float()

    def good_x(self, n: int) -> Any:
        if self.kind == "two inputs":
            token = torch.from_numpy(self.numpy.integers(0, 5, n))
            parts = self.tensor(n, FEATURES), token
            return self.choose(parts, {"features": parts[0], "token": token})
        return self.tensor(n, FEATURES)

    def good_y(self, n: int) -> Any:
        if self.kind in ("regression", "callable"):
            return self.tensor(n, 2)
        if self.kind == "labels":
            return torch.from_numpy(self.numpy.integers(0, 2, (n, 2))).float()
        return torch.from_numpy(self.numpy.integers(0, CLASSES, n))

    def spoiled(self, value: Any) -> Any:
        """A tensor changed in some way, or something else altogether."""
        if isinstance(value, tuple) and self.often(0.7):
            return tuple(self.spoiled(part) if self.often(0.5) else part for part in value)
        if isinstance(value, dict) and self.often(0.7):
            key = self.choose("features", "token", "other", 3)
            return {**value, key: self.spoiled(value.get(key, torch.zeros(3)))}
        if not isinstance(value, Tensor):
            return self.choose(None, "text", 5, [], {}, (), [[1], [2, 3]], object())
        dtypes = (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float64,
                  torch.bool, torch.complex64)  # fmt: skip
        size = int(self.numpy.integers(0, 4))
        return self.choose(
            lambda: value.to(self.choose(*dtypes)),
            lambda: value[:-1],
            lambda: torch.cat([value, value]),
            lambda: value.reshape(-1),
            lambda: value[..., None],
            lambda: value.T if value.ndim == 2 else value[None],
            lambda: value[..., :0],
            lambda: self.tensor(len(value), size),
            lambda: self.tensor(len(value), size, size),
            lambda: torch.full(value.shape, self.choose(torch.nan, torch.inf, -torch.inf)),
            lambda: self.with_one(value, self.choose(torch.nan, torch.inf, -torch.inf)),
            lambda: value * self.choose(0, -1, 7, 1e3, 1e12, 1e30, 3e38),
            lambda: value + self.choose(1, -1, 100, 2**40),
            lambda: value.numpy(),
            lambda: value.numpy()[::-1],
            lambda: value.numpy().astype(object),
            lambda: value.numpy().astype(self.choose("U8", "uint16", "uint64", "f2", "datetime64[s]")),
            lambda: value.tolist(),
            lambda: value.double().requires_grad_(),
            lambda: value.to_sparse(),
            lambda: torch.zeros(()),
            lambda: value.expand(2, *value.shape),
            lambda: np.ma.masked_array(value.numpy()),
            lambda: None,
            lambda: "text",
            lambda: 3,
            lambda: 2**70,
            lambda: [None, 1],
            lambda: [[1, 2], [3]],
            lambda: {"features": value},
            lambda: {3: value},
            lambda: (value, value),
            lambda: [value, value[:-1]],
            lambda: (),
            lambda: object(),
            lambda: iter([1, 2]),
        )()

    def with_one(self, value: Tensor, entry: float) -> Tensor:
        value = value.float().clone()
        if value.numel():
            value.view(-1)[int(self.numpy.integers(value.numel()))] = entry
        return value

    def x(self, n: int) -> Any:
        return self.good_x(n) if self.often(0.6) else self.spoiled(self.good_x(n))

    def y(self, n: int) -> Any:
        return self.good_y(n) if self.often(0.6) else self.spoiled(self.good_y(n))

    def task(self, n: int) -> Any:
        return self.good_task() if self.often(0.7) else self.bad_task(n)

    def good_task(self) -> Any:
        return self.choose(None, 0, 1) if self.kind not in ("gem", "agem", "icarl") else self.choose(0, 1, 2)

    def bad_task(self, n: int) -> Any:
        return self.choose(
            -1, 10**12, 2**70, 1.0, 0.5, "0", True, torch.tensor(1), torch.tensor([0, 1]), np.int32(1), [0] * n, [0, 1],
            list(range(n)), torch.zeros(n), torch.full((n,), -1), [None] * n, object(), torch.zeros(n, 1).long(),
        )  # fmt: skip

    def id(self, n: int) -> Any:
        return None if self.often(0.8) else self.bad_id(n)

    def bad_id(self, n: int) -> Any:
        """Ids of every kind, valid ones among them."""
        return self.choose(range(n), [str(i % 3) for i in range(n)], [None] * n, torch.arange(n), "ann", 3, [1.5] * n,
                           [1], torch.zeros(n), [2**70] * n, np.arange(n), object())  # fmt: skip


def call(learner: Learner, chance: Chance) -> None:
    """One call of any kind, in any order."""
    n = chance.samples()
    memory = learner.memory
    which = chance.numpy.random()
    if which < 0.70 or memory is None:
        learner.observe(chance.x(n), chance.y(n), chance.task(n), chance.id(n))
    elif which < 0.78:
        chance.choose(learner.predict, learner.predict_proba, learner.logits)(chance.x(n))
    elif which < 0.84:
        item = chance.choose((chance.x(n), chance.y(n)), (chance.x(n), chance.y(n), chance.task(n)), chance.x(n))
        learner.remember([item], limit=chance.choose(None, None, 3, 0, -1, 2.5, "3"))
    elif which < 0.88:
        learner.diagnose(chance.x(n), chance.y(n), chance.task(n), chance.choose(None, 5, 0, "5"))
    elif which < 0.92:
        learner.forget(
            **chance.choose(
                {}, {"slots": [0, 3, 99, -1]}, {"ids": [1]}, {"ids": 3}, {"slots": [1], "ids": [2]},
                {"predicate": lambda samples: samples.y}, {"predicate": lambda samples: samples.slots == 2},
                {"slots": ["a"]}, {"slots": 3}, {"slots": [1.5]},
            )
        )  # fmt: skip
    elif which < 0.95:
        memory.sample(chance.choose(3, 0, 10**6, -1, 1.5, "3", None))
    elif which < 0.97:
        learner.grow(chance.choose(CLASSES, 0, -3, "4", 2.5, None, True))
    else:
        spoil = chance.choose("learner", "network", "progress", "own", "random", "memory")
        state = {**learner.state_dict(), spoil: chance.choose(None, 3, {}, "text", torch.zeros(2), [])}
        learner.load_state_dict(chance.choose(state, {}, None, 3, {"learner": "Replay"}))


def fingerprint(learner: Learner) -> bytes:
    digest = hashlib.blake2b()

    def feed(value: Any) -> None:
        if isinstance(value, dict):
            for key, part in value.items():
                digest.update(str(key).encode())
                feed(part)
        elif isinstance(value, list | tuple):
            for part in value:
                feed(part)
        elif isinstance(value, Tensor):
            digest.update(f"{value.dtype}{tuple(value.shape)}".encode())
            digest.update(
                value.detach().contiguous().flatten().view(torch.uint8).numpy().data if value.numel() else b""
            )
        else:
            digest.update(repr(value).encode())

    feed(state_of(learner))
    feed([module.training for module in learner.model.modules()])
    feed([parameter.grad for parameter in learner.model.parameters()])
    return digest.digest()


def outcome(learner: Learner, chance: Chance) -> str | None:
    """None when the call went well, else our reason for refusing; any other error is a failure."""
    try:
        call(learner, chance)
    except RehearseError as problem:
        return str(problem)
    return None


@pytest.mark.filterwarnings("default")  # numpy and torch may grumble about what they are given
@pytest.mark.parametrize("kind", KINDS)
def test_each_call_succeeds_or_raises_our_error_and_changes_nothing(kind: str) -> None:
    number = KINDS.index(kind)
    calls = len(range(number, CALLS, len(KINDS)))
    learned = refused = 0
    learner, chance = build(kind), Chance(number, kind)
    world = torch.get_rng_state()
    for step in range(calls):
        if step % 150 == 0:
            learner = build(kind)
            world, before = torch.get_rng_state(), fingerprint(learner)
        problem = outcome(learner, chance)
        if problem is None:
            learned += 1
            before = fingerprint(learner)
        else:
            refused += 1
            assert fingerprint(learner) == before, f"call {step} was refused ({problem}) and left a trace"
        assert all(bool(parameter.isfinite().all()) for parameter in learner.model.parameters()), f"call {step}"
        assert torch.equal(torch.get_rng_state(), world)
        assert torch.is_grad_enabled()
    assert learned > 0.15 * calls
    assert refused > 0.15 * calls


@pytest.mark.parametrize("predict_by", ["head", "nearest-mean"])
def test_inputs_are_refused_before_anything_is_to_be_undone(predict_by: Literal["head", "nearest-mean"]) -> None:
    """Undoing writes the same values again, which another thread can see."""
    model = nn.Sequential(nn.Linear(FEATURES, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learner = Replay(model, optimizer, ReservoirMemory(20), predict_by=predict_by)
    x, y = torch.randn(6, FEATURES), torch.tensor([0, 1, 2, 0, 1, 2])
    learner.observe(x, y)
    before = {name: (id(value), value._version) for name, value in model.state_dict(keep_vars=True).items()}
    for bad in ((x * torch.nan, y), (x, y[:2])) if predict_by == "head" else [(x, (y, y))]:
        with pytest.raises(RehearseError):
            learner.observe(*bad)
        after = {name: (id(value), value._version) for name, value in model.state_dict(keep_vars=True).items()}
        assert after == before


def test_a_learner_still_learns_after_invalid_batches() -> None:
    """What the fuzzer cannot say: after refusals the learner still learns."""
    learner = build("er-mir")
    x, y = torch.randn(6, FEATURES), torch.tensor([0, 1, 2, 0, 1, 2])
    losses = [learner.observe(x, y).incoming_loss for _ in range(3)]
    for bad in (x[:, :2], x * torch.nan, None):
        with pytest.raises(RehearseError):
            learner.observe(bad, y)
    losses += [learner.observe(x, y).incoming_loss for _ in range(60)]
    assert np.mean(losses[-5:]) < losses[0]
    learner.remember([Batch(x, y)])


def test_a_single_stored_sample_does_not_stop_a_model_with_batchnorm() -> None:
    learner = build("er-mir")
    x, y = torch.randn(6, FEATURES), torch.tensor([0, 1, 2, 0, 1, 2])
    learner.remember([(x[:1], y[:1])])
    assert learner.observe(x, y).replayed is None
    assert learner.observe(x, y).replayed is not None


@pytest.mark.parametrize(
    "predicate", [3, "text", lambda samples: None, lambda samples: "text", lambda samples: samples.y]
)
def test_a_predicate_that_is_none_is_refused(predicate: Any) -> None:
    learner = build("er")
    learner.observe(torch.randn(4, FEATURES), torch.arange(4) % CLASSES)
    with pytest.raises(RehearseError, match="predicate"):
        learner.forget(predicate=predicate)


def test_any_string_is_an_id() -> None:
    learner = build("er")
    learner.observe(torch.randn(2, FEATURES), torch.tensor([0, 1]), id=["\ud800", "\udfff"])
    assert learner.forget(ids=["\ud800"]) == 1


@pytest.mark.parametrize("data", [None, 3, torch.tensor(3.0), [None], [(torch.zeros(2, FEATURES),)]])
def test_what_yields_no_samples_is_no_data_to_remember(data: Any) -> None:
    with pytest.raises(RehearseError, match="must yield"):
        build("er").remember(data)


@pytest.mark.parametrize("capacity", [0, 2**48, 2**63, 2**70])
def test_a_capacity_beyond_all_memories_is_refused(capacity: int) -> None:
    with pytest.raises(RehearseError, match="capacity"):
        ReservoirMemory(capacity)


@pytest.mark.parametrize("classes", [0, 2**31, 2**63, 2**70])
def test_a_head_beyond_all_heads_is_refused(classes: int) -> None:
    with pytest.raises(RehearseError, match="cannot be grown"):
        build("dark").grow(classes)


@pytest.mark.parametrize("value", [{}, [], 3, "other", Replay])
@pytest.mark.parametrize("name", ["batchnorm", "pad", "augment"])
def test_an_argument_of_another_kind_is_refused(name: str, value: Any) -> None:
    model = plain()
    with pytest.raises(RehearseError, match=name if name != "augment" else "transform"):
        Replay(model, sgd(model), ReservoirMemory(3), **{name: value})


def test_one_sample_without_a_batch_dimension_has_no_classes() -> None:
    for source in (build("er"), build("er").predictor()):
        for call in (source.predict, source.predict_proba):
            with pytest.raises(RehearseError, match="batch dimension"):
                call(torch.randn(FEATURES))


def test_samples_with_nothing_in_them_are_refused() -> None:
    learner = build("agem")
    for call in (learner.predict, lambda x: learner.observe(x, torch.tensor([0, 1]), 0)):
        with pytest.raises(RehearseError, match="nothing in"):
            call(torch.zeros(2, 0))


@pytest.mark.parametrize("y", [{}, [0, 1], torch.tensor(1), torch.zeros(3).long()])
def test_a_task_whose_targets_do_not_fit_is_refused(y: Any, tmp_path: Path) -> None:
    learner = SETTINGS["CodeReplay True True adam 1"](tmp_path).learner
    with pytest.raises(RehearseError):
        learner.begin_task(Batch(torch.rand(2, 1, 2, 4), y, 7), 7)
