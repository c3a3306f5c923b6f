"""Learner.diagnose: which stored samples a step on a batch would interfere with."""

from __future__ import annotations

import copy

import pytest
import torch
from samples_and_learner import batches, learner
from torch import Tensor, nn

from rehearse import Batch, MostInterfered, Replay, ReservoirMemory
from rehearse.errors import InvalidInput
from rehearse.lab.batchnorm import Published
from rehearse.lab.report.diagnose import diagnose_plot
from rehearse.learners import GEM, ICaRL
from rehearse.memory import ExemplarMemory, TaskRingMemory
from sameness import assert_same, frozen, outside


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
    samples = one.memory.get(diagnosis.slots)
    before = nn.functional.cross_entropy(model(samples.x), samples.y, reduction="none")
    after = nn.functional.cross_entropy(twin(samples.x), samples.y, reduction="none")
    torch.testing.assert_close(diagnosis.before, before.detach())
    torch.testing.assert_close(diagnosis.after, after.detach())
    assert len(diagnosis) == len(one.memory)
    assert diagnosis.interference.tolist() == sorted(diagnosis.interference.tolist(), reverse=True)
    assert torch.equal(diagnosis.y, samples.y)


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


def test_samples_of_the_task_are_left_out_and_groups_add_up() -> None:
    one = trained()
    diagnosis = one.diagnose(*next(batches(1, seed=9)), task=1)
    assert set(diagnosis.task.tolist()) == {0, 2}
    for name, groups in (("class", diagnosis.y), ("task", diagnosis.task)):
        table = diagnosis.by(name)
        assert sum(samples for samples, _ in table.values()) == len(diagnosis)
        for group, (_, mean) in table.items():
            assert mean == pytest.approx(diagnosis.interference[groups == group].mean().item())


def by_hand(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, clip: float = torch.inf) -> None:
    """A step as anybody would take it, on a copy."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()


def losses_after(model: nn.Module, samples: Batch) -> Tensor:
    return nn.functional.cross_entropy(model(samples.x), samples.y, reduction="none").detach()


def test_the_step_is_the_one_that_the_retrieval_looks_ahead_to() -> None:
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
        samples = one.memory.get(diagnosis.slots)
        torch.testing.assert_close(diagnosis.before, losses_after(model, samples))
        torch.testing.assert_close(diagnosis.after, losses_after(twin, samples), rtol=1e-4, atol=1e-5)


def test_a_method_without_look_ahead_is_diagnosed_with_its_optimizers_step() -> None:
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

    def judged(logits: Tensor, x: Tensor, y: Tensor) -> Tensor:
        goal = old(x).sigmoid().detach()
        goal[:, 2] = (y == 2).float()
        return nn.functional.binary_cross_entropy_with_logits(logits, goal, reduction="none").sum(1)

    samples, twin = one.memory.get(diagnosis.slots), copy.deepcopy(model)
    step = torch.optim.SGD(twin.parameters(), lr=0.5)
    judged(twin(x), x, y).mean().backward()
    step.step()
    torch.testing.assert_close(diagnosis.before, judged(model(samples.x), samples.x, samples.y).detach())
    torch.testing.assert_close(diagnosis.after, judged(twin(samples.x), samples.x, samples.y).detach())


def test_samples_of_the_task_are_diagnosed_if_they_are_replayed() -> None:
    one = trained(exclude_current_task=False)
    assert set(one.diagnose(*next(batches(1, seed=9)), task=1).task.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("samples", [1001, 2001])
def test_no_part_of_the_memory_is_a_single_sample(samples: int) -> None:
    """Batch-norm has no variance of one sample."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    one = Replay(model, torch.optim.SGD(model.parameters(), lr=0.5), ReservoirMemory(3000))
    one.remember(batches(1, samples=samples))
    assert len(one.diagnose(*next(batches(1)))) == samples


def test_a_single_sample_that_cannot_be_scored_raises_and_changes_nothing() -> None:
    one = learner(batchnorm=Published())
    one.remember(batches(1, samples=1))
    before, world = frozen(one.state_dict()), outside(one.model)
    with pytest.raises(InvalidInput, match="cannot take"):
        one.diagnose(*next(batches(1)))
    with pytest.raises(InvalidInput, match="cannot take"):
        one.diagnose(*next(batches(1, samples=1)))
    assert_same(frozen(one.state_dict()), before)
    assert_same(outside(one.model), world)
    assert one.samples_passed == 0


def test_diagnosing_between_two_steps_does_not_change_the_second() -> None:
    """Also with the published batch-norm mode, in which scoring moves the statistics."""
    one, other = (learner(batchnorm=Published()) for _ in range(2))
    for x, y in batches(6):
        one.observe(x, y)
        other.observe(x, y)
        one.diagnose(x, y)
        assert one.forward_passes == other.forward_passes
    assert_same(one.state_dict(), other.state_dict())


def test_an_invalid_batch_or_an_empty_memory_raises() -> None:
    with pytest.raises(InvalidInput, match="no stored samples"):
        learner().diagnose(*next(batches(1)))
    one = trained()
    with pytest.raises(InvalidInput, match="label 7"):
        one.diagnose(torch.randn(2, 5), torch.tensor([0, 7]))
    with pytest.raises(InvalidInput, match="limit"):
        one.diagnose(*next(batches(1)), limit=-1)


def test_the_plot_shows_every_sample() -> None:
    pytest.importorskip("matplotlib")
    one = trained()
    diagnosis = one.diagnose(*next(batches(1, seed=9)))
    figure = diagnose_plot(diagnosis)
    losses, means = figure.axes
    assert sum(len(line.get_xdata()) for line in losses.lines[:2]) == len(diagnosis)
    assert len(means.patches) == len(diagnosis.by("class"))
    assert [bar.get_height() for bar in means.patches] == [mean for _, mean in diagnosis.by("class").values()]
    diagnose_plot(diagnosis, by="task")
