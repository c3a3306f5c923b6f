"""What a learner holds between two steps, what it notices then, and what may be assigned."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rehearse import ClassBalancedMemory, Finetune, Learner, MostInterfered, Replay, ReservoirMemory
from rehearse.batchnorm import versions
from rehearse.errors import InvalidInput, InvalidType
from rehearse.learners import ICaRL
from rehearse.learners.gdumb import GDumb
from rehearse.memory import ExemplarMemory
from rehearse.network import Network
from sameness import assert_same


def samples(n: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, 4, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 1000), nn.BatchNorm1d(1000), nn.ReLU(), nn.Linear(1000, 3))


def held() -> int:
    gc.collect()
    tensors = [one for one in gc.get_objects() if issubclass(type(one), Tensor)]
    tensors = [one for one in tensors if one.device.type == "cpu" and one.layout == torch.strided]
    return sum({one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}.values())


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}], ids=str)
def test_nothing_of_the_undo_or_the_look_ahead_is_held(options: dict[str, Any]) -> None:
    own = model()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1, **options)
    learner = Replay(own, optimizer, ReservoirMemory(20), MostInterfered(10), exclude_current_task=False)
    for n in (6, 7, 5):
        learner.observe(*samples(n))
    before = held()
    learner.network._saved.clear()
    learner.network.twin.place({})
    assert held() == before


def test_the_undo_restores_what_torch_keeps_for_the_thread() -> None:
    own = model()
    network = Network(own, torch.optim.SGD(own.parameters(), lr=0.1))
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        restore = network.snapshot()
        torch.set_grad_enabled(True)
        torch.set_autocast_enabled("cpu", True)
        restore()
        assert not torch.is_grad_enabled()
        assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_is_noticed(fused: bool) -> None:
    own, memory = model(), ReservoirMemory(20)
    learner = Finetune(own, torch.optim.Adam(own.parameters(), fused=fused))
    parameters = nn.ParameterList(own.parameters())  # without the buffers, which a step moves too
    before = versions(parameters, memory)
    learner.observe(*samples())
    assert all(one != other for one, other in zip(before[1:], versions(parameters, memory)[1:], strict=True))


def test_an_optimizer_that_is_assigned_is_checked() -> None:
    own = model()
    learner = Finetune(own, torch.optim.SGD(own.parameters(), lr=0.1))
    first = learner.optimizer
    for optimizer in (torch.optim.SGD(model().parameters()), torch.optim.LBFGS(own.parameters())):
        with pytest.raises(InvalidInput):
            learner.optimizer = optimizer
    with pytest.raises(InvalidType):
        learner.optimizer = "SGD"  # type: ignore[assignment]
    assert learner.optimizer is first


@pytest.mark.parametrize("steps", [1, 2])
def test_no_memory_left_is_not_the_fault_of_the_batch(steps: int) -> None:
    own = model()
    retrieval = MostInterfered(10)
    optimizer = torch.optim.SGD(own.parameters(), lr=0.1)
    learner = Replay(own, optimizer, ReservoirMemory(20), retrieval, exclude_current_task=False)
    learner.observe(*samples())

    def full(*_: object) -> None:
        nonlocal steps
        steps -= 1
        if not steps:
            raise torch.OutOfMemoryError("no memory left")

    own[0].register_forward_hook(full)
    with pytest.raises(torch.OutOfMemoryError):
        learner.observe(*samples(5))


KEPT: dict[str, Callable[..., Learner]] = {
    "statistics": lambda *parts: Replay(*parts, ReservoirMemory(20), batchnorm="recalibrated"),
    "means": lambda *parts: ICaRL(*parts, ExemplarMemory(20)),
    "trained weights": lambda *parts: GDumb(*parts, ClassBalancedMemory(20), epochs=2),
}


@pytest.mark.parametrize("what", KEPT)
def test_what_is_kept_for_predictions_does_not_depend_on_the_callers_contexts(what: str) -> None:
    learners = []
    for _ in range(2):
        own = model()
        learners.append(KEPT[what](own, torch.optim.SGD(own.parameters(), lr=0.1)))
    x, y = samples(9)
    one, other = learners
    other.observe(x, y, 0)
    with torch.inference_mode():
        one.observe(x, y, 0)
        one.predict(x)
    one.observe(x, y, 0)
    other.observe(x, y, 0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        one.predict(x)
    assert torch.equal(one.logits(x), other.logits(x))
    assert len(one.diagnose(x, y, task=1).slots) == 18


def test_arrays_can_be_learned_in_inference_mode() -> None:
    """What they become is trained on."""
    learners = []
    for inference in (False, True):
        own = model()
        learners.append(Replay(own, torch.optim.SGD(own.parameters(), lr=0.1), ReservoirMemory(20)))
        for n in (9, 8):
            x, y = samples(n)
            with torch.inference_mode(inference):
                learners[-1].observe(x.numpy(), y.numpy())
    assert_same(learners[0].state_dict(), learners[1].state_dict())


def test_gdumb_can_be_asked_in_inference_mode() -> None:
    own = model()
    learner = GDumb(own, torch.optim.SGD(own.parameters(), lr=0.1), ClassBalancedMemory(20), epochs=1)
    learner.observe(*samples(9))
    with torch.inference_mode():
        assert learner.predict(samples(9)[0]).shape == (9,)
