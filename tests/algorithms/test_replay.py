"""Replay: Algorithm 1 against a textbook loop with deep copies, the batch-norm modes, and what one seed decides."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse import Finetune, MostInterfered, Replay, ReservoirMemory, Step, Uniform
from rehearse.batchnorm import BatchNormPolicy
from rehearse.errors import InvalidInput, InvalidType
from rehearse.lab.batchnorm import Published
from rehearse.random import RandomState, numpy_generator
from sameness import assert_same, differences

MODES = ("published", "clean", "joint", "recalibrated")


class Flat(nn.Module):
    """8–16–4 with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.25))
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class Chain(nn.Sequential):
    """Linear layers and ReLUs alone: the kind of model that `fast.dense` takes."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))


class Normed(nn.Module):
    """Convolutions and batch-norm, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(1, 4, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.dropout = nn.Dropout(0.25)
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.convolution(x.view(-1, 1, 2, 4))))
        return self.head(self.dropout(F.avg_pool2d(x, (1, 2)).flatten(1)))


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


def network(kind: type[nn.Module] = Flat) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return kind()


def stream(tasks: int = 3, batches: int = 6, samples: int = 10) -> list[tuple[Tensor, Tensor, int]]:
    generator = torch.Generator().manual_seed(2)
    return [
        (
            torch.randn(samples, 8, generator=generator) + task,
            torch.randint(0, 4, (samples,), generator=generator),
            task,
        )
        for task in range(tasks)
        for _ in range(batches)
    ]


def sgd(model: nn.Module, lr: float = 0.1, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def policy(mode: str) -> str | BatchNormPolicy:
    return Published() if mode == "published" else mode


def replay(kind: type[nn.Module] = Flat, retrieval: Any = None, *, seed: int = 0, **options: Any) -> Replay:
    model = network(kind)
    optimizer = options.pop("optimizer", sgd)(model)
    capacity = options.pop("capacity", 25)
    options.setdefault("precision", "float32")
    memory = ReservoirMemory(capacity, seed=seed)
    batchnorm = policy(options.pop("batchnorm", "auto"))
    retrieval = retrieval or MostInterfered(12)
    return Replay(model, optimizer, memory, retrieval, seed=seed, batchnorm=batchnorm, **options)


class Textbook:
    """Algorithm 1 word by word: deep copies, loops and .grad; draws and slots are from a memory of the same seed."""

    def __init__(self, kind: type[nn.Module], *, candidates: int | None, criterion: str, **options: Any) -> None:
        self.model = network(kind)
        self.optimizer = options.get("optimizer", sgd)(self.model)
        self.memory = ReservoirMemory(options.get("capacity", 25), seed=0)
        self.random = RandomState(0)
        self.candidates, self.criterion = candidates, criterion
        self.updates, self.weight = options.get("updates", 1), options.get("replay_weight", 1.0)
        self.batchnorm, self.budget = options.get("batchnorm", "clean"), options.get("budget", 10)
        self.best: dict[int, float] = {}

    def observe(self, x: Tensor, y: Tensor, task: int | None) -> tuple[float, float | None, list[int] | None]:
        with self.random:
            for _ in range(self.updates):
                outcome = self._update(x, y, task)
        for slot in self.memory.add(x, y, task=task).tolist():
            self.best.pop(slot, None)
        return outcome

    def _update(self, x: Tensor, y: Tensor, task: int | None) -> tuple[float, float | None, list[int] | None]:
        joint = self.batchnorm == "joint" and any(isinstance(m, nn.BatchNorm2d) for m in self.model.modules())
        self.model.train()
        first = copy.deepcopy(self.model) if joint else self.model
        first.zero_grad()
        replayed, slots = None, None
        if self.memory.eligible(task) or not joint:
            incoming = F.cross_entropy(first(x), y)
            incoming.backward()
        if self.memory.eligible(task):
            gradient = [p.grad.clone() for p in first.parameters() if p.grad is not None]
            slots = self._most_interfered(gradient, task)
            samples = self.memory.get(torch.tensor(slots))
        if joint:
            self.model.zero_grad()
            logits = self.model(x if slots is None else torch.cat([x, samples.x]))
            loss = incoming = F.cross_entropy(logits[: len(x)], y)
            if slots is not None:
                replayed = F.cross_entropy(logits[len(x) :], samples.y)
                loss = incoming + self.weight * replayed
            loss.backward()
        elif slots is not None:
            replayed = F.cross_entropy(self.model(samples.x), samples.y)
            (self.weight * replayed).backward()
        self.optimizer.step()
        return incoming.item(), None if replayed is None else replayed.item(), slots

    def _most_interfered(self, gradient: list[Tensor], task: int | None) -> list[int]:
        if self.candidates is None:
            samples = self.memory.all(exclude_task=task)
        else:
            samples = self.memory.sample(self.candidates, exclude_task=task)
        present, ahead = copy.deepcopy(self.model), copy.deepcopy(self.model)
        rates = {id(p): group["lr"] for group in self.optimizer.param_groups for p in group["params"]}
        with torch.no_grad():
            for p, q, g in zip(self.model.parameters(), ahead.parameters(), gradient, strict=True):
                q -= rates[id(p)] * g
            before, after = (
                F.cross_entropy(scoring(net)(samples.x), samples.y, reduction="none").tolist()
                for net in (present, ahead)
            )
            if self.batchnorm == "published":
                for buffer, passed in zip(self.model.buffers(), present.buffers(), strict=True):
                    buffer.copy_(passed)
        scores = {}
        assert samples.slots is not None
        for slot, was, becomes in zip(samples.slots.tolist(), before, after, strict=True):
            if self.criterion == "mi2":
                was = self.best[slot] = min(self.best.get(slot, float("inf")), was)
            scores[slot] = becomes - was
        return sorted(scores, key=lambda slot: (-scores[slot], slot))[: self.budget]


def scoring(model: nn.Module) -> nn.Module:
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
    return model


def agree(learner: Replay, book: Textbook, tasks: bool = True) -> None:
    for number, (x, y, task) in enumerate(stream()):
        step = learner.observe(x, y, task if tasks else None)
        incoming, replayed, slots = book.observe(x, y, task if tasks else None)
        assert step.incoming_loss == pytest.approx(incoming, rel=1e-4), number
        assert (step.replayed is None) == (slots is None)
        if step.replayed is not None:
            assert step.replayed.slots is not None
            assert step.replayed.slots.tolist() == slots, number
            assert step.replayed_loss == pytest.approx(replayed, rel=1e-4), number
        for (name, mine), theirs in zip(learner.model.state_dict().items(), book.model.state_dict().values()):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


# ---------------------------------------------------------------------------------------------------- Algorithm 1


@pytest.mark.parametrize("tasks", [True, False])
@pytest.mark.parametrize("criterion", ["mi1", "mi2"])
@pytest.mark.parametrize("kind", [Flat, Chain, Normed])
def test_algorithm_1(kind: type[nn.Module], criterion: Any, tasks: bool) -> None:
    agree(replay(kind, MostInterfered(12, criterion)), Textbook(kind, candidates=12, criterion=criterion), tasks)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    first, *rest = model.parameters()
    return torch.optim.SGD([{"params": [first], "lr": 0.05}, {"params": rest}], lr=0.1, momentum=0.5, weight_decay=0.01)


@pytest.mark.parametrize(
    "options",
    [
        {"updates": 3},
        {"replay_weight": 0.3},
        {"budget": 4, "capacity": 7},
        {"optimizer": momentum},
        {"updates": 2, "replay_weight": 2.0, "optimizer": momentum},
    ],
    ids=["updates", "weight", "small", "momentum", "all"],
)
@pytest.mark.parametrize("kind", [Flat, Chain])
def test_options_of_algorithm_1(kind: type[nn.Module], options: dict[str, Any]) -> None:
    agree(
        replay(kind, MostInterfered(None, "mi2"), **options),
        Textbook(kind, candidates=None, criterion="mi2", **options),
    )


def test_without_weight_replay_is_finetuning() -> None:
    learner = replay(Chain, replay_weight=0.0)
    model = network(Chain)
    plain = Finetune(model, sgd(model))
    for x, y, task in stream():
        learner.observe(x, y, task)
        plain.observe(x, y, task)
    for one, other in zip(learner.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_the_fields_of_a_step() -> None:
    learner = replay(budget=5)
    seen = 0
    for x, y, task in stream():
        held = learner.memory.state_dict()
        step = learner.observe(x, y, task)
        seen += len(x)
        assert isinstance(step, Step)
        if task == 0:
            assert (step.replayed, step.replayed_loss, step.interference) == (None, None, None)
            continue
        assert step.replayed is not None
        assert step.replayed.slots is not None
        assert step.interference is not None
        assert len(step.replayed) == 5
        assert task not in step.replayed.task.tolist()  # type: ignore[union-attr]
        assert step.interference.tolist() == sorted(step.interference.tolist(), reverse=True)
        assert torch.equal(step.replayed.x, held["x"][step.replayed.slots])  # as they were before the batch entered
    assert learner.memory.seen == learner.samples_observed == seen
    assert learner.task == 2


def test_without_tasks_and_on_request_all_stored_samples_are_eligible() -> None:
    for options, task in (({}, None), ({"exclude_current_task": False}, 0)):
        learner = replay(**options)
        first, second, *_ = stream()
        assert learner.observe(first[0], first[1], task).replayed is None
        replayed = learner.observe(second[0], second[1], task).replayed
        assert replayed is not None
        assert len(replayed) == 10


def test_with_a_task_per_sample_all_tasks_of_the_batch_are_excluded() -> None:
    learner = replay()
    for x, y, task in stream():
        learner.observe(x, y, task)
    x, y, _ = stream()[0]
    replayed = learner.observe(x, y, [0] * 5 + [1] * 5).replayed
    assert replayed is not None
    assert set(replayed.task.tolist()) == {2}  # type: ignore[union-attr]


def test_with_one_seed_all_retrievals_store_the_same_samples_at_every_step() -> None:
    plain = replay(retrieval=Uniform())
    others = [replay(retrieval=MostInterfered(12, "mi2")), replay(retrieval=Uniform(12)), replay(updates=3)]
    different = replay(retrieval=Uniform(), seed=1)
    for x, y, task in stream():
        for learner in (plain, *others, different):
            learner.observe(x, y, task)
        samples = plain.memory.state_dict()
        for learner in others:
            assert_same(learner.memory.state_dict()["x"], samples["x"])
    assert differences(different.memory.state_dict()["x"], plain.memory.state_dict()["x"])


def test_a_frozen_parameter_does_not_move_even_if_it_has_a_grad() -> None:
    learner = replay()
    weight = learner.model.body[0].weight  # type: ignore[union-attr, index]
    weight.requires_grad_(False)
    weight.grad = torch.ones_like(weight)
    before = weight.clone()
    for x, y, task in stream():
        learner.observe(x, y, task)
    assert torch.equal(weight, before)
    assert torch.equal(weight.grad, torch.ones_like(weight))


def test_the_users_grads_stay_and_have_no_effect_on_the_step() -> None:
    learner, twin = replay(), replay()
    for parameter in learner.model.parameters():
        parameter.grad = torch.full_like(parameter, 100.0)
    x, y, task = stream()[0]
    learner.observe(x, y, task)
    twin.observe(x, y, task)
    assert_same(learner.model.state_dict(), twin.model.state_dict())
    assert all(bool((p.grad == 100).all()) for p in learner.model.parameters() if p.grad is not None)


def test_clip_limits_the_step() -> None:
    x, y, task = stream()[0]
    for clip, limited in ((1e-3, True), (1e3, False)):
        model = network()
        learner = Replay(model, sgd(model, lr=1.0), ReservoirMemory(5), clip=clip)
        before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
        learner.observe(x, y, task)
        moved = (torch.cat([p.detach().flatten() for p in model.parameters()]) - before).norm().item()
        if limited:
            assert moved == pytest.approx(clip, rel=1e-2)
        else:
            assert 0.1 < moved < 10


def test_a_model_in_double_precision() -> None:
    model = network(Chain).double()
    learner = Replay(model, sgd(model), ReservoirMemory(20))
    for x, y, task in stream():
        assert learner.observe(x, y, task).incoming_loss > 0
    assert learner.logits(stream()[0][0]).dtype == torch.float64


# ----------------------------------------------------------------------------------------------------- batch-norm


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("options", [{}, {"updates": 2, "replay_weight": 0.5}], ids=["plain", "updates"])
def test_batchnorm_modes_match_the_textbook(mode: Any, options: dict[str, Any]) -> None:
    """Parameters and running statistics after every step."""
    learner = replay(Normed, MostInterfered(12), batchnorm=mode, **options)
    agree(learner, Textbook(Normed, candidates=12, criterion="mi1", batchnorm=mode, **options))


def test_published_clean_and_recalibrated_train_bit_equal_parameters() -> None:
    learners = {mode: replay(Normed, batchnorm=mode) for mode in MODES}
    for x, y, task in stream():
        for learner in learners.values():
            learner.observe(x, y, task)
            learner.predict(x)
    parameters = {mode: dict(learner.model.named_parameters()) for mode, learner in learners.items()}
    buffers = {mode: dict(learner.model.named_buffers()) for mode, learner in learners.items()}
    assert_same(parameters["published"], parameters["clean"])
    assert_same(parameters["recalibrated"], parameters["clean"])
    assert differences(parameters["joint"], parameters["clean"])
    assert_same(buffers["recalibrated"], buffers["clean"])
    assert differences(buffers["published"], buffers["clean"])
    counts = {mode: int(buffers[mode]["norm.num_batches_tracked"]) for mode in MODES}
    first, later = 6, 12  # batches without and with stored samples of other tasks
    assert counts == {
        "clean": first + 2 * later,
        "recalibrated": first + 2 * later,
        "published": first + 3 * later,
        "joint": first + later,
    }


def test_joint_random_replay_passes_every_sample_once() -> None:
    learner = replay(Normed, Uniform(), batchnorm="joint")
    samples = 0
    for x, y, task in stream():
        step = learner.observe(x, y, task)
        samples += len(x) + (0 if step.replayed is None else len(step.replayed))
    assert learner.forward_passes == pytest.approx(samples / learner.samples_observed)


def test_candidates_of_the_control_move_the_published_statistics_too() -> None:
    counts = {}
    for name, retrieval in (("er", Uniform()), ("control", Uniform(12)), ("mir", MostInterfered(12))):
        learner = replay(Normed, retrieval, batchnorm="published")
        for x, y, task in stream():
            learner.observe(x, y, task)
        counts[name] = int(learner.model.norm.num_batches_tracked)  # type: ignore[union-attr, operator, arg-type]
    assert counts == {"er": 6 + 2 * 12, "control": 6 + 3 * 12, "mir": 6 + 3 * 12}


def test_without_batchnorm_the_mode_has_no_effect() -> None:
    learners = [replay(batchnorm=mode) for mode in MODES]
    for x, y, task in stream():
        for learner in learners:
            learner.observe(x, y, task)
    for learner in learners[1:]:
        for part in ("network", "random", "memory"):
            assert_same(learner.state_dict()[part], learners[0].state_dict()[part])
        assert_same(learner.logits(x), learners[0].logits(x))


def literally_recalibrated(learner: Replay, x: Tensor) -> Tensor:
    """Reset, average over the memory in batches of 100 without momentum, evaluate: on a copy."""
    model = copy.deepcopy(learner.model)
    everything = learner.memory.all()
    order = torch.from_numpy(numpy_generator(0, "recalibrate").permutation(len(everything))[:1000])
    norm: Any = model.norm
    norm.reset_running_stats()
    norm.momentum = None
    scoring(model)
    with torch.no_grad():
        for samples in order.split(100):
            if len(samples) > 1:
                model(everything.x[samples])
        return model.eval()(x)


@pytest.mark.parametrize("capacity", [30, 101, 130])
def test_recalibrated_prediction_matches_the_literal_computation(capacity: int) -> None:
    learner = replay(Normed, batchnorm="recalibrated", capacity=capacity)
    x = torch.randn(7, 8)
    untrained = learner.logits(x)
    torch.testing.assert_close(untrained, copy.deepcopy(learner.model).eval()(x).detach())
    for number, (samples, y, task) in enumerate(stream()):
        learner.observe(samples, y, task)
        if number % 6 == 5:
            before = learner.state_dict()
            torch.testing.assert_close(learner.logits(x), literally_recalibrated(learner, x), rtol=1e-4, atol=1e-5)
            assert_same(learner.state_dict(), before)
    assert learner.model.norm.momentum == 0.1  # type: ignore[union-attr]


def test_recalibrated_statistics_follow_the_memory() -> None:
    learner = replay(Normed, batchnorm="recalibrated")
    for samples, y, task in stream():
        learner.observe(samples, y, task)
    x = torch.randn(7, 8)
    before = learner.logits(x)
    assert_same(learner.logits(x), before)
    learner.memory.forget(predicate=lambda batch: batch.task == 2)
    torch.testing.assert_close(learner.logits(x), literally_recalibrated(learner, x), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(learner.logits(x), before)


def test_a_single_stored_sample_does_not_recalibrate() -> None:
    learner = replay(Normed, batchnorm="recalibrated", capacity=1)
    learner.observe(*stream()[0][:2])
    x = torch.randn(3, 8)
    torch.testing.assert_close(learner.logits(x), copy.deepcopy(learner.model).eval()(x).detach())


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "options",
    [
        {"budget": 0},
        {"budget": 2.0},
        {"updates": 0},
        {"updates": True},
        {"replay_weight": -1.0},
        {"replay_weight": float("nan")},
        {"batchnorm": "none"},
        {"precision": "float16"},
        {"clip": 0.0},
        {"seed": -1},
    ],
)
def test_invalid_options(options: dict[str, Any]) -> None:
    model = network()
    with pytest.raises(InvalidInput, match=next(iter(options))):
        Replay(model, sgd(model), ReservoirMemory(5), **options)


def test_invalid_parts() -> None:
    model = network()
    with pytest.raises(InvalidType, match="Memory"):
        Replay(model, sgd(model), 500)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"nn\.Module"):
        Replay(lambda x: x, sgd(model), ReservoirMemory(5))  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"torch\.optim"):
        Replay(model, 0.1, ReservoirMemory(5))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="no trainable parameter"):
        Replay(model, sgd(network()), ReservoirMemory(5))
    with pytest.raises(InvalidInput, match="LBFGS"):
        Replay(model, torch.optim.LBFGS(model.parameters()), ReservoirMemory(5))


class Fragile(nn.Module):
    """Returns infinite logits for certain samples once it has seen ``limit`` batches."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout, self.linear = nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)
        self.limit = 1_000_000

    def forward(self, x: Tensor) -> Tensor:
        scores = self.linear(self.dropout(self.norm(x)))
        if self.training and int(self.norm.num_batches_tracked) >= self.limit:  # type: ignore[arg-type]
            scores = scores * torch.where(x[:, :1] > 5, torch.inf, 1.0)
        return scores


@pytest.mark.parametrize("updates", [1, 3])
def test_a_failure_in_the_last_update_undoes_everything(updates: int) -> None:
    """By then samples were drawn, best losses noted, statistics moved and (with 3 updates) two steps taken."""
    model = Fragile()
    learner = Replay(
        model,
        torch.optim.Adam(model.parameters(), lr=0.1),
        ReservoirMemory(20),
        MostInterfered(None, "mi2"),
        budget=20,
        updates=updates,
        batchnorm=Published(),
    )
    for task in (0, 0, 1):
        learner.observe(torch.randn(5, 8), torch.randint(0, 4, (5,)), task=task)
    learner.memory.add(torch.full((4, 8), 9.0), torch.zeros(4, dtype=torch.long), task=0)
    batch = torch.randn(5, 8), torch.randint(0, 4, (5,))
    before = learner.state_dict()
    model.limit = int(model.norm.num_batches_tracked) + 3 * updates  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"for finite input"):
        learner.observe(*batch, task=1)
    assert_same(learner.state_dict(), before)
    model.limit = 1_000_000
    learner.observe(*batch, task=1)
    assert differences(learner.state_dict(), before)


def test_tuples_and_dicts_of_inputs() -> None:
    class TwoInputs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(8, 4), nn.Linear(3, 4)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.left(left) + self.right(right)

    finals = []
    for form in (tuple, dict):
        torch.manual_seed(3)
        model = TwoInputs()
        learner = Replay(model, sgd(model), ReservoirMemory(20), MostInterfered(16, "mi2"))
        for x, y, task in stream():
            right = (x[:, :3] * 10).clamp(0, 255).to(torch.uint8)
            step = learner.observe((x, right) if form is tuple else {"right": right, "left": x}, y, task)
        assert step.replayed is not None
        assert isinstance(step.replayed.x, form)
        assert len(learner.predict((x, right) if form is tuple else {"left": x, "right": right})) == len(x)
        finals.append(dict(model.named_parameters()))
    assert_same(finals[0], finals[1])


def test_regression_and_labels() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 2)).astype(np.float32)
    model = nn.Linear(2, 1)
    learner = Replay(model, sgd(model, 0.1), ReservoirMemory(50), loss=nn.MSELoss())
    for start in range(0, 200, 10):
        learner.observe(x[start : start + 10], x[start : start + 10] @ np.array([2.0, -1.0], dtype=np.float32) + 0.5)
    torch.testing.assert_close(model.weight.detach(), torch.tensor([[2.0, -1.0]]), atol=0.2, rtol=0)
    assert learner.predict(x[:3]).shape == (3, 1)
    with pytest.raises(InvalidInput, match="values"):
        learner.predict_proba(x[:3])

    model = nn.Linear(2, 2)
    learner = Replay(model, sgd(model, 0.5), ReservoirMemory(50), loss=nn.BCEWithLogitsLoss())
    for start in range(0, 200, 10):
        learner.observe(x[start : start + 10], (x[start : start + 10] > 0).astype(np.int64))
    assert (learner.predict(x).numpy() == (x > 0)).mean() > 0.9
    assert learner.predict_proba(x).max() <= 1
