"""The private copy of models that change under it, keep what they compute, or cannot be copied."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from interrupting import Interruption
from torch import Tensor, nn

from rehearse import Finetune, MostInterfered, Replay, ReservoirMemory
from rehearse.errors import InvalidInput
from rehearse.network.twin import Twin


def samples(n: int = 6) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(n)
    return torch.randn(n, 4, generator=generator), torch.randint(0, 3, (n,), generator=generator)


def learner(model: nn.Module) -> Replay:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    retrieval = MostInterfered(10, "mi2")
    return Replay(model, optimizer, ReservoirMemory(20), retrieval, exclude_current_task=False, batchnorm="clean")


class Keeping(nn.Module):
    """Keeps an activation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.features: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.features = self.norm(self.first(x))
        logits: Tensor = self.last(self.features.relu())
        return logits


class Uncopyable(Keeping):
    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        self.first.weight.copies = getattr(self.first.weight, "copies", 0) + 1  # type: ignore[attr-defined]
        raise TypeError("no copies")


class Masked(nn.Module):
    """Its outputs are those of the classes that it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.known, self.by_name = nn.Linear(4, 3), {0}, {"offset": 0.0}

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((3,), -1e9)
        mask[list(self.known)] = 0.0
        logits: Tensor = self.first(x) + mask + self.by_name["offset"]
        return logits


def test_an_activation_that_is_kept_does_not_stop_copies() -> None:
    model = Keeping()
    own, twin = learner(model), None
    for n in (6, 7, 5):
        own.observe(*samples(n))
        own.predictor()
        own.logits(samples()[0])
        twin = twin or own.network.twin.module
        assert own.network.twin.module is twin is not model


def test_a_model_that_cannot_be_copied_is_not_copied_at_every_look() -> None:
    model = Uncopyable()
    own = learner(model)
    own.observe(*samples())
    own.logits(samples()[0])
    tried = model.first.weight.copies  # type: ignore[attr-defined]
    for n in (6, 7, 5):
        own.observe(*samples(n))
        own.logits(samples()[0])
    assert model.first.weight.copies == tried  # type: ignore[attr-defined]


class Meanwhile(Keeping):
    """Calls something while it computes, as if another thread did."""

    call: Callable[[], object]

    def forward(self, x: Tensor) -> Tensor:
        type(self).call()
        return super().forward(x)


def test_a_first_look_leaves_what_others_do_to_the_model_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, _) = Meanwhile(), samples()
    own, weight = learner(model), nn.Parameter(torch.zeros(3, 6))

    def change() -> None:
        model.norm.eval()
        model.last.weight, model.norm.running_mean = weight, weight[0].detach()

    monkeypatch.setattr(Meanwhile, "call", staticmethod(change), raising=False)
    own.logits(x)
    assert own.network.twin.module is not model
    assert model.last.weight is weight
    assert not model.norm.training
    assert not model.norm.running_mean.any()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "change", [lambda m: m.known.add(1), lambda m: m.by_name.update(offset=3.0)], ids=["set", "dict"]
)
def test_attributes_that_change_in_place_are_followed(change: Callable[[Masked], object]) -> None:
    model, (x, _) = Masked(), samples()
    own = Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1))
    own.logits(x)
    change(model)
    with torch.no_grad():
        assert torch.equal(own.logits(x), model(x))


def wrapped(model: nn.Module) -> nn.Module:
    original = model.forward
    model.forward = lambda x: original(x).float()  # type: ignore[method-assign]
    return model


def in_a_notebook(model: nn.Module) -> nn.Module:
    names: dict[str, Any] = {"model": model, "original": model.forward}
    exec("model.forward = lambda x: original(x).float()", names)
    return model


def by_default(model: nn.Module) -> nn.Module:
    model.forward = lambda x, own=model: own.last(own.norm(own.first(x)).relu())  # type: ignore[method-assign, misc]
    return model


@pytest.mark.parametrize("wrap", [wrapped, in_a_notebook, by_default])
def test_a_model_that_calls_itself_through_a_closure_is_left_as_it_is(wrap: Callable[[nn.Module], nn.Module]) -> None:
    model, (x, _) = wrap(Keeping()), samples()
    own, plain = learner(model), learner(Keeping())
    for n in (6, 7, 5):
        ours, theirs = own.observe(*samples(n)), plain.observe(*samples(n))
        assert (ours.interference is None) == (theirs.interference is None)
        if ours.interference is not None:
            assert torch.equal(ours.interference, theirs.interference)  # type: ignore[arg-type]
    before = [buffer.clone() for buffer in model.buffers()]
    assert torch.equal(own.logits(x + 5), plain.logits(x + 5))
    assert all(map(torch.equal, before, model.buffers()))
    with pytest.raises(InvalidInput, match="cannot be copied"):
        own.predictor()


def test_functions_that_hold_no_module_are_copied() -> None:
    model = Keeping()
    scale = 2.0
    model.scale = lambda x: x * scale  # type: ignore[assignment]
    twin = Twin(model)
    assert twin.in_mode("evaluation") is not model


@pytest.mark.parametrize(
    ("call", "late"), [("observe", False), ("diagnose", False), ("predict", False), ("predict", True)]
)
def test_an_exception_while_such_a_model_is_called_leaves_its_tensors(call: str, late: bool) -> None:
    """Also of one that can no longer be copied since the last look."""
    line, interrupted = 1, True
    while interrupted:
        model = Keeping() if late else Uncopyable()
        own, batches = learner(model), [samples(6), samples(7), samples(5)]
        for batch in batches[:2]:
            own.observe(*batch)
        if late:
            model.lock = threading.Lock()  # type: ignore[assignment]
        before = [*map(id, (*model.parameters(), *model.buffers()))], [module.training for module in model.modules()]
        interruption, arguments = Interruption(line), batches[2][: 1 if call == "predict" else 2]
        interrupted = interruption(lambda: getattr(own, call)(*arguments))  # noqa: B023
        after = [*map(id, (*model.parameters(), *model.buffers()))], [module.training for module in model.modules()]
        assert before == after, interruption.where
        line += 1 if call == "predict" else 5
    assert line > 100
