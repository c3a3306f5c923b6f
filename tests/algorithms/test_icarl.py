"""iCaRL: herding, loss and prediction against literal loops over copies of the network; what it stores, and when."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse.errors import InvalidInput, InvalidType, RehearseError
from rehearse.learners import ICaRL
from rehearse.learners.icarl import herding
from rehearse.learners.nearest_mean import class_means
from rehearse.memory import ExemplarMemory, ReservoirMemory
from rehearse.nets import ReducedResNet18
from sameness import assert_same, frozen


def net(outputs: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, outputs))


def learner(capacity: int = 12, **options: Any) -> ICaRL:
    model = net()
    return ICaRL(model, torch.optim.SGD(model.parameters(), lr=0.3), ExemplarMemory(capacity), budget=4, **options)


def stream(steps_per_task: int = 5, tasks: int = 3) -> list[tuple[Tensor, Tensor, int]]:
    chance = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(4, 3, generator=chance) + task,
            torch.randint(2 * task, 2 * task + 2, (4,), generator=chance),
            task,
        )
        for task in range(tasks)
        for _ in range(steps_per_task)
    ]


def features(model: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(model, nn.Sequential)
    with torch.no_grad():
        return F.normalize(model[1](model[0](x)), dim=1)


# ------------------------------------------------------------------------------------------------------- herding


def test_herding_is_the_greedy_choice() -> None:
    points = F.normalize(torch.randn(9, 4, generator=torch.Generator().manual_seed(0)), dim=1)
    chosen: list[int] = []
    for k in range(1, 6):
        distances = {
            sample: (points.mean(0) - points[[*chosen, sample]].sum(0) / k).norm().item()
            for sample in range(9)
            if sample not in chosen
        }
        chosen.append(min(distances, key=lambda sample: distances[sample]))
    assert herding(points, 5).tolist() == chosen
    assert sorted(herding(points, 100).tolist()) == list(range(9))
    assert herding(points, 0).tolist() == []


def test_class_means_by_hand() -> None:
    labels, means = class_means(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0]]), torch.tensor([5, 5, 2]))
    assert labels.tolist() == [2, 5]
    torch.testing.assert_close(means, torch.tensor([[0.0, 1.0], [2**-0.5, 2**-0.5]]))


# ------------------------------------------------------------------------------------------------------ learning


@pytest.mark.parametrize("updates", [1, 3])
def test_the_steps_match_the_formula(updates: int) -> None:
    ours, literal = learner(updates=updates), net()
    old, past, new = None, set(), set()
    checked = 0
    for position, (x, y, task) in enumerate(stream()):
        if position % 5 == 0 and position:
            ours.end_task()
            old, past, new = copy.deepcopy(literal), past | new, set()
        if updates > 1:
            ours.memory.sample = _same_draw(ours.memory.sample)  # type: ignore[method-assign]
        step = ours.observe(x, y, task)
        new |= set(y.tolist())
        samples, labels = x, y
        if step.replayed is not None:
            samples, labels = torch.cat([x, step.replayed.x]), torch.cat([y, step.replayed.y])
            assert set(step.replayed.y.tolist()) <= past
            checked += 1
        for _ in range(updates):
            logits, loss = literal(samples), torch.zeros(())
            for c in sorted(past | new):
                target = (labels == c).float()
                if c in past:
                    assert old is not None
                    target = old(samples).sigmoid()[:, c].detach()
                loss = loss + F.binary_cross_entropy(logits[:, c].sigmoid(), target)
            gradients = torch.autograd.grad(loss, list(literal.parameters()))
            with torch.no_grad():
                for parameter, gradient in zip(literal.parameters(), gradients, strict=True):
                    parameter -= 0.3 * gradient
    assert checked == 10
    for one, other in zip(ours.model.parameters(), literal.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def _same_draw(sample: Any) -> Any:
    """Let all updates of a batch replay the same samples: the literal version can follow that."""
    kept: list[Any] = []

    def draw(*arguments: Any, **options: Any) -> Any:
        kept.append(sample(*arguments, **options)) if not kept else None
        return kept[0]

    return draw


@pytest.mark.parametrize("keep", ["memory", "task"])
def test_the_capacity_is_never_exceeded_and_every_class_has_its_share(keep: Any) -> None:
    ours = learner(capacity=13, keep=keep)
    for position, batch in enumerate(stream(steps_per_task=8)):
        if position % 8 == 0:
            ours.end_task()
        ours.observe(*batch)
        assert len(ours.memory) <= 13
    ours.end_task()
    assert Counter(ours.memory.all().y.tolist()) == dict.fromkeys(range(6), 13 // 6)


def test_keeping_the_task_chooses_from_all_of_it() -> None:
    ours = learner(capacity=6, keep="task")
    samples = stream(steps_per_task=10, tasks=1)
    for batch in samples:
        ours.observe(*batch)
    x, y = torch.cat([x for x, _, _ in samples]), torch.cat([y for _, y, _ in samples])
    assert ours.diagnostics()["running_task_bytes"] == 40 * (3 * 4 + 8)
    ours.end_task()
    held = ours.memory.all()
    for label in (0, 1):
        of_class = x[y == label]
        best = of_class[herding(features(ours.model, of_class), 3)]
        assert torch.equal(held.x[held.y == label], best)
    assert ours.diagnostics() == {"memory_bytes": ours.memory.nbytes, "running_task_bytes": 40 * (3 * 4 + 8)}


def test_exemplars_give_way_in_the_order_of_herding() -> None:
    ours = learner(capacity=12)
    samples = stream(steps_per_task=6, tasks=2)
    for batch in samples[:6]:
        ours.observe(*batch)
    ours.end_task()
    held = ours.memory.all()
    ranked = {label: held.x[held.y == label] for label in (0, 1)}  # in the order of their slots: that of herding
    for batch in samples[6:]:
        ours.observe(*batch)
    for label, best in ranked.items():
        left = ours.memory.all()
        assert torch.equal(left.x[left.y == label], best[:3])


# ----------------------------------------------------------------------------------------------------- predicting


def nearest_means(ours: ICaRL, x: Tensor) -> tuple[Tensor, Tensor]:
    """Classes and distances, with the features of the network as it is now."""
    held = ours.memory.all()
    labels = sorted(set(held.y.tolist()))
    means = [F.normalize(features(ours.model, held.x[held.y == label]).mean(0), dim=0) for label in labels]
    distances = torch.stack([(features(ours.model, x) - mean).norm(dim=1) for mean in means], dim=1)
    return torch.tensor(labels), distances


def test_prediction_is_the_nearest_mean_of_the_present_network() -> None:
    ours, x = learner(), torch.randn(50, 3)
    for position, batch in enumerate(stream()):
        if position in (5, 10):
            ours.end_task()
        ours.observe(*batch)
        labels, distances = nearest_means(ours, x)  # new at every step: the network has moved
        assert torch.equal(ours.predict(x), labels[distances.argmin(1)])
        probabilities = torch.zeros(50, 6)
        probabilities[:, labels] = (-distances).softmax(1)
        torch.testing.assert_close(ours.predict_proba(x), probabilities, rtol=1e-4, atol=1e-5)
    ours.end_task()
    labels, distances = nearest_means(ours, x)
    assert torch.equal(ours.predict(x), labels[distances.argmin(1)])


def test_before_any_sample_all_classes_are_equally_likely() -> None:
    assert learner().predict_proba(torch.randn(2, 3)).tolist() == [pytest.approx([1 / 6] * 6)] * 2


def test_predicting_changes_nothing() -> None:
    ours = learner()
    for batch in stream():
        ours.observe(*batch)
    before = frozen(ours.state_dict())
    ours.predict_proba(torch.randn(5, 3))
    assert_same(ours.state_dict(), before)


# ----------------------------------------------------------------------------------------- tasks, state, invalid input


def test_a_new_task_ends_the_previous_one() -> None:
    explicit, implicit = learner(), learner()
    for position, batch in enumerate(stream()):
        if position in (5, 10):
            explicit.end_task()
        explicit.observe(*batch)
        implicit.observe(*batch)
    assert_same(implicit.state_dict(), explicit.state_dict())


@pytest.mark.parametrize("keep", ["memory", "task"])
def test_icarl_resumes_bit_for_bit(keep: Any) -> None:
    for cut in (3, 5, 7, 12):
        whole, first, second = (learner(keep=keep, updates=2) for _ in range(3))
        for batch in stream():
            whole.observe(*batch)
        for batch in stream()[:cut]:
            first.observe(*batch)
        second.load_state_dict(copy.deepcopy(first.state_dict()))
        for batch in stream()[cut:]:
            second.observe(*batch)
        assert_same(second.state_dict(), whole.state_dict())
        x = torch.randn(9, 3)
        assert torch.equal(second.predict_proba(x), whole.predict_proba(x))


ALTERED: dict[str, tuple[str, Any]] = {
    "a past class that is a fraction": ("past_labels", [0, 0.5]),
    "a past class below zero": ("past_labels", [-1]),
    "a past class without an output": ("past_labels", [6]),
    "a class without an output": ("labels", [0, 6]),
    "classes in no list": ("labels", {0: 1}),
    "bytes that are no number": ("most_kept_bytes", "many"),
    "bytes below zero": ("most_kept_bytes", -1),
    "kept samples with more than samples have": ("kept", lambda kept: {**kept, "slots": torch.arange(8)}),
    "a task that is no number": ("kept", lambda kept: {**kept, "task": kept["task"].double()}),
    "fewer tasks than kept samples": ("kept", lambda kept: {**kept, "task": kept["task"][:3]}),
    "fewer ids than kept samples": ("kept", lambda kept: {**kept, "columns": {"id": torch.arange(3)}}),
    "kept samples of a class without an output": ("kept", lambda kept: {**kept, "y": kept["y"] + 6}),
    "an earlier network of another shape": ("old", lambda old: {name: value[..., :1] for name, value in old.items()}),
    "an earlier network of other numbers": ("old", lambda old: {name: value.double() for name, value in old.items()}),
    "an earlier network without its head": ("old", lambda old: {name: old[name] for name in list(old)[:2]}),
}


@pytest.mark.parametrize(("name", "value"), ALTERED.values(), ids=ALTERED)
def test_what_is_known_of_the_tasks_is_checked_when_it_is_loaded(name: str, value: Any) -> None:
    ours, saved = learner(keep="task"), learner(keep="task")
    for batch in stream()[:7]:
        saved.observe(*batch)
    before, state = frozen(ours.state_dict()), copy.deepcopy(saved.state_dict())
    state["own"][name] = value(state["own"][name]) if callable(value) else value
    with pytest.raises(RehearseError):
        ours.load_state_dict(state)
    assert_same(ours.state_dict(), before)


@pytest.mark.parametrize("keep", ["memory", "task"])
def test_an_invalid_batch_does_not_even_end_the_task(keep: Any) -> None:
    ours = learner(keep=keep)
    for batch in stream()[:5]:
        ours.observe(*batch)
    before = frozen(ours.state_dict())
    x, y = torch.ones(2, 3), torch.tensor([2, 3])
    with pytest.raises(InvalidInput, match="needs to know the task"):
        ours.observe(x, y)
    for bad_x, bad_y, words in (
        (x, torch.tensor([2, 6]), "outside the model's 6 outputs"),
        (torch.ones(2, 7), y, "those before had"),
        (x.double(), y, "convert them"),
    ):
        with pytest.raises(InvalidInput, match=words):
            ours.observe(bad_x, bad_y, 1)
        assert_same(ours.state_dict(), before)
    with pytest.raises((InvalidInput, InvalidType)):
        ours.observe(x, torch.tensor([[0.5], [0.2]]), 1)
    assert_same(ours.state_dict(), before)
    with torch.no_grad():
        ours.model[2].weight[0] = torch.nan  # type: ignore[index]
    before = frozen(ours.state_dict())
    with pytest.raises(InvalidInput, match="for finite input"):
        ours.observe(x, y, 1)
    assert_same(ours.state_dict(), before)


def test_more_classes_than_capacity() -> None:
    ours = learner(capacity=2)
    ours.observe(torch.ones(2, 3), torch.tensor([0, 1]), 0)
    with pytest.raises(InvalidInput, match="too few for exemplars of 3 classes"):
        ours.observe(torch.ones(1, 3), torch.tensor([2]), 1)


def test_invalid_icarl_parts() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InvalidType, match="ExemplarMemory"):
        ICaRL(model, optimizer, ReservoirMemory(5))  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="keep is"):
        ICaRL(model, optimizer, ExemplarMemory(5), keep="all")  # type: ignore[arg-type]


def test_a_class_that_comes_back_is_learned_again() -> None:
    """All classes in every task: nothing to distill, and each task has exemplars of its own."""
    ours = learner(capacity=24)
    chance = torch.Generator().manual_seed(0)
    for step in range(12):
        ours.observe(torch.randn(6, 3, generator=chance), torch.arange(6), step // 6)
        assert len(ours.memory) <= 24
    ours.end_task()
    groups = Counter(zip(ours.memory.all().task.tolist(), ours.memory.all().y.tolist(), strict=True))
    assert set(groups.values()) <= {1, 2}
    assert len(groups) == 12


def test_a_grown_head_distills_the_old_outputs() -> None:
    ours = learner()
    for batch in stream(tasks=2):
        ours.observe(*batch)
    ours.end_task()
    ours.grow(8)
    step = ours.observe(torch.randn(4, 3), torch.tensor([6, 7, 6, 7]), 2)
    assert step.replayed is not None
    assert ours.predict_proba(torch.randn(3, 3)).shape == (3, 8)
    other = learner()
    other.load_state_dict(copy.deepcopy(ours.state_dict()))
    for one in (ours, other):
        one.observe(torch.ones(4, 3), torch.tensor([6, 7, 6, 7]), 2)
    assert_same(other.state_dict(), ours.state_dict())


def test_icarl_with_the_resnet() -> None:
    torch.manual_seed(0)
    model = ReducedResNet18()
    ours = ICaRL(model, torch.optim.SGD(model.parameters(), lr=0.1), ExemplarMemory(20), budget=4, updates=2)
    chance = torch.Generator().manual_seed(2)
    for task in (0, 0, 1, 1):
        x = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=chance)
        step = ours.observe(x, torch.tensor([0, 1, 0, 1]) + 2 * task, task)
    ours.end_task()
    assert step.replayed is not None
    assert set(step.replayed.y.tolist()) <= {0, 1}
    assert Counter(ours.memory.all().y.tolist()) == dict.fromkeys(range(4), 4)
    probabilities = ours.predict_proba(x)
    assert probabilities.sum(1).tolist() == pytest.approx([1.0] * 4, abs=1e-5)
    assert (probabilities[:, 4:] == 0).all()
    assert ours.forward_passes == pytest.approx((2 * 4 * 4 + 2 * 2 * 4 + 2 * 2 * 8 + 8 + 8) / 16)


# --------------------------------------------------------------------------------------------- remember


def known(tasks: int = 2) -> list[tuple[Tensor, Tensor, int]]:
    return stream(tasks=tasks)


@pytest.mark.parametrize("keep", ["memory", "task"])
def test_remembered_samples_become_exemplars_and_the_network_is_distilled(keep: Any) -> None:
    one = learner(capacity=100, keep=keep)
    before = frozen(one.model.state_dict())
    assert one.remember(known()) == 40
    assert_same(one.model.state_dict(), before)
    x, y = (torch.cat([batch[part] for batch in known()]) for part in (0, 1))
    held = one.memory.all()
    for label in range(4):
        mine = x[y == label]
        best = mine[herding(features(one.model, mine), 25)]  # 100 // 4
        assert torch.equal(held.x[held.y == label], best[: len(held.x[held.y == label])])
        assert (held.y == label).sum() == len(best)
    old = one.state_dict()["own"]["old"]
    assert_same({name: value for name, value in old.items() if name in before}, before)
    assert one.state_dict()["own"]["past_labels"] == [0, 1, 2, 3]
    assert one.samples_observed == 0
    assert one.samples_passed == 0
    labels, means = class_means(features(one.model, x), y)
    assert torch.equal(one.predict(x), labels[torch.cdist(features(one.model, x), means).argmin(1)])


def test_a_step_after_remember_replays_and_distills() -> None:
    one = learner(capacity=40)
    one.remember(known())
    literal = copy.deepcopy(one.model)
    x, y, task = stream()[-1]
    step = one.observe(x, y, task)
    assert step.replayed is not None
    samples, labels = torch.cat([x, step.replayed.x]), torch.cat([y, step.replayed.y])
    goal = literal(samples).sigmoid().detach()
    for label in y.unique():
        goal[:, label] = (labels == label).float()
    come = [0, 1, 2, 3, *y.unique().tolist()]
    loss = F.binary_cross_entropy_with_logits(literal(samples)[:, come], goal[:, come], reduction="none").sum(1).mean()
    loss.backward()
    torch.optim.SGD(literal.parameters(), lr=0.3).step()
    torch.testing.assert_close(one.model.state_dict(), literal.state_dict())


def test_remember_is_bounded_and_raises_while_a_task_runs() -> None:
    one = learner(capacity=5)
    assert one.remember(((x, y) for x, y, _ in known()), limit=30) == 30
    assert len(one.memory) <= 5
    assert Counter(one.memory.all().task.tolist()).keys() == {-1}
    one.observe(*stream()[-1])
    before = frozen(one.state_dict())
    with pytest.raises(InvalidInput, match="end_task"):
        one.remember(known())
    assert_same(one.state_dict(), before)
    one.end_task()
    one.remember((x, y) for x, y, _ in known())


def test_samples_remembered_before_an_invalid_batch_become_exemplars() -> None:
    one = learner()
    before = frozen(one.state_dict())
    with pytest.raises(InvalidInput, match="label 9"):
        one.remember([(torch.randn(1, 3), torch.tensor([9]))])
    assert_same(one.state_dict(), before)
    x, y, task = known()[0]
    with pytest.raises(InvalidInput, match="those before had"):
        one.remember([(x, y, task), (torch.randn(2, 4), torch.tensor([0, 1]), task)])
    assert one.memory.seen == 4
    assert len(one.memory.running()) == 0
    with pytest.raises(InvalidInput, match="too few"):
        learner(capacity=1).remember([(x[:2], torch.tensor([0, 1]))])
