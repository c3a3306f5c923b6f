"""Filling a memory without training, and telling what a batch would do to it."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from rehearse import Batch, Finetune, MostInterfered, Replay, ReservoirMemory
from rehearse.errors import InvalidInput, InvalidType
from rehearse.lab.report.diagnose import diagnose_plot
from rehearse.learners import GEM, ICaRL
from rehearse.losses import DarkExperience
from rehearse.memory import ExemplarMemory, TaskRingMemory
from sameness import assert_same, frozen, outside


def batches(count: int, seed: int = 0, rows: int = 8) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield torch.randn(rows, 5, generator=generator), torch.randint(0, 3, (rows,), generator=generator)


def learner(**options: object) -> Replay:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    return Replay(model, torch.optim.SGD(model.parameters(), lr=0.5), ReservoirMemory(50), MostInterfered(), **options)


# ---------------------------------------------------------------------------------------------------- remember


def test_remembering_fills_the_memory_and_changes_nothing_else() -> None:
    one = learner()
    before, world = frozen(one.state_dict()), outside(one.model)
    assert one.remember(batches(4)) == 32
    after = one.state_dict()
    assert len(one.memory) == 32
    assert torch.equal(one.memory.all().x, torch.cat([x for x, _ in batches(4)]))
    after["own"], before["own"] = None, None
    assert_same(after, before)
    assert_same(outside(one.model), world)


def test_what_is_remembered_is_what_observing_would_have_kept() -> None:
    one, other = learner(), ReservoirMemory(50)
    one.remember(batches(20))
    for x, y in batches(20):
        other.add(x, y)
    assert_same(one.memory.state_dict(), other.state_dict())


def test_an_endless_stream_needs_a_limit_and_has_no_length() -> None:
    def endless() -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            yield from batches(5)

    one = learner()
    assert one.remember(endless(), limit=21) == 21
    assert one.memory.seen == 21
    with pytest.raises(InvalidInput, match="limit"):
        one.remember(endless(), limit=0)


def test_tasks_batches_and_ids() -> None:
    one = learner()
    x, y = next(batches(1))
    one.remember([Batch(x, y, 3, columns={"id": ["ann", "bob"] * 4})])
    assert one.memory.all().task.tolist() == [3] * 8
    assert one.memory.forget(ids=["bob"]) == 4
    other = learner()
    other.remember([(x, y, 7)])
    assert other.memory.all().task.tolist() == [7] * 8


def test_rows_that_could_not_be_replayed_are_refused_and_those_before_stay() -> None:
    one = learner()
    good = next(batches(1))
    with pytest.raises(InvalidInput, match="label 3 is outside"):
        one.remember([good, (torch.randn(2, 5), torch.tensor([0, 3]))])
    with pytest.raises(InvalidInput, match="cannot take"):
        one.remember([(torch.randn(2, 4), torch.tensor([0, 1]))])
    with pytest.raises(InvalidType, match="it gave a"):
        one.remember([torch.zeros(3)])
    assert one.memory.seen == 8
    one.observe(*good)


@pytest.mark.parametrize("batchnorm", ["auto", "recalibrated", "clean", "published", "joint"])
def test_what_the_loss_wants_kept_is_kept(batchnorm: str) -> None:
    """As the model says it before there are memories, whose statistics move while they come in."""
    one = learner(loss=DarkExperience(), batchnorm=batchnorm)
    x = torch.cat([x for x, _ in batches(2)])
    said = one.logits(x)
    one.remember(batches(2))
    (name,) = one.memory.all().columns
    assert torch.equal(one.memory.all().columns[name], said)
    one.observe(*next(batches(1)))


def test_without_a_memory_there_is_nothing_to_fill() -> None:
    model = nn.Linear(5, 3)
    one = Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InvalidInput, match="no memory"):
        one.remember(batches(1))
    with pytest.raises(InvalidInput, match="no memory"):
        one.diagnose(*next(batches(1)))


def test_a_deployed_model_learns_new_classes_and_keeps_the_old() -> None:
    """Load, remember, grow, observe: after new classes the old ones are still known."""
    torch.manual_seed(0)
    means = 4 * torch.eye(4)[:, :4]

    def draw(labels: list[int], rows: int) -> tuple[Tensor, Tensor]:
        y = torch.tensor(labels)[torch.randint(0, len(labels), (rows,))]
        return means[y] + 0.3 * torch.randn(rows, 4), y

    model = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(100):
        x, y = draw([0, 1], 32)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    one = Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(100))
    one.remember(draw([0, 1], 32) for _ in range(4))
    one.grow(4)
    for _ in range(60):
        one.observe(*draw([2, 3], 10))
    x, y = draw([0, 1, 2, 3], 400)
    assert (one.predict(x) == y).float().mean() > 0.95


# ---------------------------------------------------------------------------------------------------- diagnose


def trained(**options: object) -> Replay:
    one = learner(**options)
    for number, (x, y) in enumerate(batches(6)):
        one.observe(x, y, task=number // 2)
    return one


def test_diagnosis_is_what_a_step_on_a_copy_really_does() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    one = Replay(model, torch.optim.SGD(model.parameters(), lr=0.5), ReservoirMemory(50))
    for x, y in batches(6):
        one.observe(x, y)
    x, y = next(batches(1, seed=9))
    diagnosis = one.diagnose(x, y)
    twin = copy.deepcopy(model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.5)
    nn.functional.cross_entropy(twin(x), y).backward()
    optimizer.step()
    rows = one.memory.get(diagnosis.slots)
    before = nn.functional.cross_entropy(model(rows.x), rows.y, reduction="none")
    after = nn.functional.cross_entropy(twin(rows.x), rows.y, reduction="none")
    torch.testing.assert_close(diagnosis.before, before.detach())
    torch.testing.assert_close(diagnosis.after, after.detach())
    assert len(diagnosis) == len(one.memory)
    assert diagnosis.interference.tolist() == sorted(diagnosis.interference.tolist(), reverse=True)
    assert torch.equal(diagnosis.y, rows.y)


def test_diagnosis_changes_nothing_and_is_the_same_every_time() -> None:
    one = trained()
    x, y = next(batches(1, seed=9))
    before, world = frozen(one.state_dict()), outside(one.model)
    first, second = one.diagnose(x, y, limit=20), one.diagnose(x, y, limit=20)
    assert_same(frozen(one.state_dict()), before)
    assert_same(outside(one.model), world)
    assert torch.equal(first.slots, second.slots)
    assert torch.equal(first.interference, second.interference)
    assert len(first) == 20


def test_memories_of_the_task_are_left_out_and_groups_add_up() -> None:
    one = trained()
    diagnosis = one.diagnose(*next(batches(1, seed=9)), task=1)
    assert set(diagnosis.task.tolist()) == {0, 2}
    for name, groups in (("class", diagnosis.y), ("task", diagnosis.task)):
        table = diagnosis.by(name)
        assert sum(rows for rows, _ in table.values()) == len(diagnosis)
        for group, (_, mean) in table.items():
            assert mean == pytest.approx(diagnosis.interference[groups == group].mean().item())


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, clip: float = torch.inf) -> None:
    """A step as anybody would take it, on a copy."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


def losses_after(model: nn.Module, rows: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(rows.x), rows.y, reduction="none").detach()


def test_the_step_foreseen_is_the_learners_own() -> None:
    """Adam's step and the clipped one are nothing like plain SGD's; of the head alone, the body stays."""
    x, y = next(batches(1, seed=9))
    for layers in ("all", "head"):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
        adam = torch.optim.Adam(model.parameters(), lr=0.05)
        retrieval = MostInterfered(virtual_step="optimizer", layers=layers)
        one = Replay(model, adam, ReservoirMemory(50), retrieval, clip=0.01)
        for bx, by in batches(6):
            one.observe(bx, by)
        twin, optimizer = copy.deepcopy((model, adam))
        by_hand(twin, optimizer, x, y, clip=0.01)
        if layers == "head":
            twin[0] = model[0]
        diagnosis = one.diagnose(x, y)
        rows = one.memory.get(diagnosis.slots)
        torch.testing.assert_close(diagnosis.before, losses_after(model, rows))
        torch.testing.assert_close(diagnosis.after, losses_after(twin, rows), rtol=1e-4, atol=1e-5)


def test_a_learner_that_looks_at_no_step_ahead_is_asked_for_its_optimisers_step() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    one = GEM(model, optimizer, TaskRingMemory(50), clip=0.1)
    for number, (x, y) in enumerate(batches(4)):
        one.observe(x, y, task=number // 2)
    x, y = next(batches(1, seed=9))
    twin, own = copy.deepcopy((model, optimizer))
    by_hand(twin, own, x, y, clip=0.1)
    diagnosis = one.diagnose(x, y, task=1)
    assert set(diagnosis.task.tolist()) == {0}
    torch.testing.assert_close(diagnosis.after, losses_after(twin, one.memory.get(diagnosis.slots)))


def test_icarl_is_diagnosed_by_its_own_loss() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    one = ICaRL(model, torch.optim.SGD(model.parameters(), lr=0.5), ExemplarMemory(30))
    for task, labels in enumerate(([0, 1], [2])):
        for x, _ in batches(3, seed=task):
            one.observe(x, torch.tensor(labels).repeat(8)[:8], task)
    x, y = next(batches(1, seed=9))[0], torch.full((8,), 2)
    before = frozen(one.state_dict())
    diagnosis = one.diagnose(x, y, task=1)
    assert_same(one.state_dict(), before)
    old = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    old.load_state_dict(before["own"]["old"])

    def judged(scores: Tensor, x: Tensor, y: Tensor) -> Tensor:
        goal = old(x).sigmoid().detach()
        goal[:, 2] = (y == 2).float()
        return nn.functional.binary_cross_entropy_with_logits(scores, goal, reduction="none").sum(1)

    rows, twin = one.memory.get(diagnosis.slots), copy.deepcopy(model)
    step = torch.optim.SGD(twin.parameters(), lr=0.5)
    judged(twin(x), x, y).mean().backward()
    step.step()
    torch.testing.assert_close(diagnosis.before, judged(model(rows.x), rows.x, rows.y).detach())
    torch.testing.assert_close(diagnosis.after, judged(twin(rows.x), rows.x, rows.y).detach())


def test_memories_of_the_task_take_part_where_they_do_in_replay() -> None:
    one = trained(exclude_current_task=False)
    assert set(one.diagnose(*next(batches(1, seed=9)), task=1).task.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("rows", [1001, 2001])
def test_no_part_of_the_memory_is_a_lone_row(rows: int) -> None:
    """Batch-norm has no variance of one row."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    one = Replay(model, torch.optim.SGD(model.parameters(), lr=0.5), ReservoirMemory(3000))
    one.remember(batches(1, rows=rows))
    assert len(one.diagnose(*next(batches(1)))) == rows


def test_a_lone_memory_that_cannot_be_scored_is_refused_and_nothing_is_noted() -> None:
    one = learner(batchnorm="published")
    one.remember(batches(1, rows=1))
    before, world = frozen(one.state_dict()), outside(one.model)
    with pytest.raises(InvalidInput, match="cannot be scored"):
        one.diagnose(*next(batches(1)))
    with pytest.raises(InvalidInput, match="cannot take"):
        one.diagnose(*next(batches(1, rows=1)))
    assert_same(frozen(one.state_dict()), before)
    assert_same(outside(one.model), world)
    assert one.lookahead.samples_passed == 0
    assert not one.lookahead.statistics


def test_diagnosing_between_two_steps_does_not_change_the_second() -> None:
    """Also with the published treatment of batch-norm, which moves what the look-ahead noted."""
    one, other = (learner(batchnorm="published") for _ in range(2))
    for x, y in batches(6):
        one.observe(x, y)
        other.observe(x, y)
        one.diagnose(x, y)
        assert one.forward_passes == other.forward_passes
    assert_same(one.state_dict(), other.state_dict())


def test_a_bad_batch_or_an_empty_memory_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no memories"):
        learner().diagnose(*next(batches(1)))
    one = trained()
    with pytest.raises(InvalidInput, match="label 7"):
        one.diagnose(torch.randn(2, 5), torch.tensor([0, 7]))
    with pytest.raises(InvalidInput, match="limit"):
        one.diagnose(*next(batches(1)), limit=-1)


def test_the_plot_shows_every_memory() -> None:
    pytest.importorskip("matplotlib")
    one = trained()
    diagnosis = one.diagnose(*next(batches(1, seed=9)))
    figure = diagnose_plot(diagnosis)
    losses, means = figure.axes
    assert sum(len(line.get_xdata()) for line in losses.lines[:2]) == len(diagnosis)
    assert len(means.patches) == len(diagnosis.by("class"))
    assert [bar.get_height() for bar in means.patches] == [mean for _, mean in diagnosis.by("class").values()]
    diagnose_plot(diagnosis, by="task")
