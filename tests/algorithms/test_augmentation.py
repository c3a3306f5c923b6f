"""``augment=``: what is transformed, what is not, and whose random numbers it draws."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from rehearse import HighestLoss, MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.errors import CheckpointError, InvalidInput, InvalidType
from rehearse.learners.scr import SCR
from rehearse.random import torch_generator
from rehearse.transforms import Chain, Color, Crop, Flip
from sameness import assert_same, frozen


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Seen(nn.Module):
    """Keeps what it gets."""

    def __init__(self, seen: list[Tensor]) -> None:
        super().__init__()
        self.seen, self.head = seen, nn.Linear(9, 4)

    def __deepcopy__(self, memo: dict[int, Any]) -> Seen:
        twin = Seen(self.seen)
        twin.head = copy.deepcopy(self.head, memo)
        return twin

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return self.head(x.flatten(1))


def batches(steps: int = 6, dtype: torch.dtype = torch.uint8) -> list[tuple[Tensor, Tensor]]:
    chance = Generator().manual_seed(3)
    return [
        (
            torch.randint(0, 200, (4, 1, 3, 3), generator=chance).to(dtype),
            torch.randint(0, 4, (4,), generator=chance),
        )
        for _ in range(steps)
    ]


def learner(augment: Any = None, retrieval: Any = None, kind: Any = Replay, **options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 4))
    parts = [model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(10)]
    parts += [retrieval or Uniform()] if kind is Replay else []
    return kind(*parts, budget=3, augment=augment, **options)


def plus_hundred(x: Tensor, generator: Generator) -> Tensor:
    return x + 50


def halved(x: Tensor) -> Tensor:
    return x.float() / 2


@pytest.mark.parametrize("retrieval", [Uniform(), MostInterfered(6), HighestLoss(6)])
def test_raw_then_augment_then_prepare_and_only_in_training(retrieval: Any) -> None:
    seen: list[Tensor] = []
    model = Seen(seen)
    ours = Replay(
        model, torch.optim.SGD(model.parameters(), 1e-6), ReservoirMemory(30), retrieval, budget=3,
        augment=plus_hundred, prepare=halved,
    )  # fmt: skip
    for x, y in batches():
        seen.clear()
        stored = ours.memory.all().x if len(ours.memory) else x[:0]
        step = ours.observe(x, y)
        trained = [(x.float() + 50) / 2]
        if step.replayed is not None:
            trained.append((step.replayed.x.float() + 50) / 2)
            assert all(any(torch.equal(one, held) for held in stored) for one in step.replayed.x)  # as it is stored
        passes = torch.cat(seen)
        for expected in torch.cat(trained):
            assert any(torch.equal(expected, one) for one in passes)
        others = [one for one in passes if not any(torch.equal(one, own) for own in torch.cat(trained))]
        scored = 2 if isinstance(retrieval, MostInterfered) else int(isinstance(retrieval, HighestLoss))
        assert len(others) == scored * min(6, len(stored))
        assert all(any(torch.equal(one, held.float() / 2) for held in stored) for one in others)  # candidates
    seen.clear()
    x, _ = batches(1)[0]
    ours.predict(x)
    assert torch.equal(torch.cat(seen), x.float() / 2)
    first = [x for x, _ in batches()]
    assert torch.equal(ours.memory.all().x, torch.cat(first))  # bytes, as they came


def test_a_step_is_literally_that_of_transformed_samples() -> None:
    """With a generator of the seed's own, which nothing else draws from."""
    transform, chance = Chain(Crop(1), Flip(), Color()), torch_generator(5, "augment")
    ours = learner(transform, seed=5, exclude_current_task=False)
    ours.model[3].p = 0.0
    literal = copy.deepcopy(ours.model)
    for x, y in batches(8):
        step = ours.observe(x, y)
        loss = F.cross_entropy(literal(transform(x, chance) / 255), y)
        if step.replayed is not None:
            loss = loss + F.cross_entropy(literal(transform(step.replayed.x, chance) / 255), step.replayed.y)
        gradients = torch.autograd.grad(loss, list(literal.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(literal.parameters(), gradients, strict=True):
                parameter -= 0.1 * gradient
        for one, other in zip(ours.model.parameters(), literal.parameters(), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_it_does_not_change_which_samples_are_stored_or_drawn() -> None:
    one, other = learner(None), learner(Crop(1))
    for x, y in batches(12):
        first, second = one.observe(x, y), other.observe(x, y)
        assert_same(first.replayed and first.replayed.slots, second.replayed and second.replayed.slots)
    assert_same(one.memory.state_dict(), other.memory.state_dict())


def own_noise(x: Tensor, generator: Generator) -> Tensor:
    """Draw from torch's global state, as transforms of other packages do."""
    return (x + torch.randint(0, 50, x.shape)).to(x.dtype)


@pytest.mark.parametrize("kind", [Replay, SCR])
@pytest.mark.parametrize("augment", [Chain(Crop(1), Flip()), own_noise])
def test_it_resumes_bit_for_bit_and_leaves_torch_alone(kind: Any, augment: Any) -> None:
    whole, first, second = (learner(augment, kind=kind) for _ in range(3))
    before = torch.get_rng_state()
    for x, y in batches(9):
        whole.observe(x, y)
    assert torch.equal(torch.get_rng_state(), before)
    for x, y in batches(9)[:4]:
        first.observe(x, y)
    second.load_state_dict(frozen(first.state_dict()))
    for one in (second, copy.deepcopy(first)):
        for x, y in batches(9)[4:]:
            one.observe(x, y)
        assert_same(one.state_dict(), whole.state_dict())


@pytest.mark.parametrize("kind", [Replay, SCR])
def test_its_random_numbers_are_undone_with_a_step_that_fails(kind: Any) -> None:
    class Breaking:
        fails = False

        def __call__(self, x: Tensor, generator: Generator) -> Tensor:
            x = Flip()(x, generator)
            if self.fails:
                raise KeyboardInterrupt
            return x

    augment = Breaking()
    ours, undisturbed = learner(augment, kind=kind), learner(Flip(), kind=kind)
    for x, y in batches():
        before, augment.fails = frozen(ours.state_dict()), True
        with pytest.raises(KeyboardInterrupt):
            ours.observe(x, y)
        assert_same(ours.state_dict(), before)
        augment.fails = False
        ours.observe(x, y)
        undisturbed.observe(x, y)
    assert_same(ours.state_dict(), undisturbed.state_dict())


def in_place(x: Tensor, generator: Generator) -> Tensor:
    return x.add_(1)


@pytest.mark.parametrize("inference", [False, True])
def test_a_transform_may_work_in_place(inference: bool) -> None:
    """It gets a copy: neither the caller's samples nor the stored ones change."""
    ours, other = learner(in_place), learner(lambda x, _: x + 1)
    for x, y in batches():
        with torch.inference_mode(inference):
            x, before = x.clone(), x.clone()
            ours.observe(x, y)
        other.observe(before, y)
        assert torch.equal(x, before)
    assert_same(ours.state_dict(), other.state_dict())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x, _: x[:2],
        lambda x, _: x.float(),
        lambda x, _: (x,),
        lambda x, _: x.flatten(1),
        lambda x, _: None,
    ],
)
def test_another_shape_or_dtype_is_refused(wrong: Any) -> None:
    ours = learner(wrong)
    before = frozen(ours.state_dict())
    with pytest.raises(InvalidInput, match="augment must return inputs as it gets them"):
        ours.observe(*batches(1)[0])
    assert_same(ours.state_dict(), before)


def test_inputs_of_several_parts() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(5, 3)

        def forward(self, image: Tensor, meta: Tensor) -> Tensor:
            return self.head(torch.cat([image.flatten(1), meta], dim=1))

    def mirror_first(x: dict[str, Tensor], generator: Generator) -> dict[str, Tensor]:
        return {**x, "image": Flip(1)(x["image"], generator)}

    model = Two()
    ours = Replay(model, torch.optim.SGD(model.parameters(), 0.1), ReservoirMemory(9), Uniform(), augment=mirror_first)
    x = {"image": torch.rand(4, 2, 2), "meta": torch.rand(4, 1)}
    expected = F.cross_entropy(model(x["image"].flip(-1), x["meta"]), torch.tensor([0, 1, 2, 0])).item()
    assert ours.observe(x, [0, 1, 2, 0]).incoming_loss == pytest.approx(expected)
    ours.observe(x, [0, 1, 2, 0])
    assert_same(ours.memory.all().x["image"][:4], x["image"])


def test_invalid_augmentations_and_foreign_states() -> None:
    for wrong in (Flip, 3):
        with pytest.raises(InvalidType, match="a transform is a function"):
            learner(wrong)
    with pytest.raises(CheckpointError, match="another choice of augment"):
        learner(Flip()).load_state_dict(learner().state_dict())
    with pytest.raises(CheckpointError, match="another choice of augment"):
        learner(average=0.1).load_state_dict(learner().state_dict())
