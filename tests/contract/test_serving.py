"""A predictor answers as its learner did when it was made, always, from any thread and in any process."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_learners import SETTINGS, batch
from torch import Tensor, nn

from conftest import SHAPE, make, modules, run, samples, tiny_stream, trained, world
from rehearse import ClassBalancedMemory, Finetune, Learner, MostInterfered, Replay, ReservoirMemory, Uniform
from rehearse.errors import InvalidInput
from rehearse.learners import ICaRL
from rehearse.learners.gdumb import GDumb
from rehearse.memory import ExemplarMemory
from rehearse.serving import Predictor
from sameness import assert_same, frozen, outside

KINDS = [
    "replay mi2 ce sgd 1 chain",
    "replay mi2 ce sgd 1 dropout",
    "replay mi2 ce sgd 1 norm auto",
    "replay mi2 ce sgd 1 resnet clean",
    "replay, bfloat16",
    "strong replay mi2 sgd 1 norm joint",
    "AGEM sgd 1 norm",
    "ICaRL memory momentum 1 norm 3",
    "ICaRL task sgd 1 norm 4",
    "GenerativeReplay mir sgd 1",
    "CodeReplay True True adam 1",
    "CodeReplay, bytes",
    "CodeReplay, norm",
]


def answers(one: Learner | Predictor, x: Tensor) -> list[Tensor]:
    return [one.logits(x), one.predict(x), one.predict_proba(x), one.logits(x[:1]), one.logits(x[:0])]


def small(**options: Any) -> Replay:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, 3))
    learner = Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(300), **options)
    for _ in range(25):
        learner.observe(torch.randn(10, 8), torch.randint(3, (10,)))
    return learner


def test_it_answers_as_the_learner_did_whatever_the_learner_does_since(method: str, network: str) -> None:
    learner, x = trained(method, network), samples(7, 5, [0, 1, 2, 3])[0]
    expected, state = answers(learner, x), frozen(learner.state_dict())
    before = [outside(model) for model in modules(learner)], world()
    predictor = learner.predictor()
    assert_same(answers(predictor, x), expected)
    assert_same(([outside(model) for model in modules(learner)], world()), before)
    assert_same(learner.state_dict(), state)
    run(learner, tiny_stream(), 12)
    with torch.no_grad():
        for model in modules(learner):
            for tensor in model.state_dict().values():
                tensor.zero_()
    assert_same(answers(predictor, x), expected)
    assert_same(answers(pickle.loads(pickle.dumps(predictor)), x), expected)
    assert_same(answers(copy.deepcopy(predictor), x), expected)


@pytest.mark.parametrize("options", [{"batchnorm": "recalibrated"}, {"average": 0.1}, {"predict_by": "nearest-mean"}])
def test_it_can_be_made_before_any_prediction(options: dict[str, Any]) -> None:
    learner, x = small(**options, retrieval=Uniform()), torch.randn(4, 8)
    assert_same(learner.predictor().logits(x), learner.logits(x))


def test_a_learner_that_has_seen_nothing_has_one_too(method: str) -> None:
    learner, x = make(method), samples(3, 5, [0, 1])[0]
    assert_same(answers(learner.predictor(), x), answers(learner, x))


def test_it_answers_the_same_in_another_process(tmp_path: Path) -> None:
    made = []
    for number, name in enumerate(KINDS):
        (tmp_path / str(number)).mkdir()
        made.append(SETTINGS[name](tmp_path / str(number)).learner.predictor())
    x = batch(50)[0]
    (tmp_path / "made").write_bytes(pickle.dumps(made))
    torch.save(x, tmp_path / "x")
    program = """if True:
        import pickle, sys, torch
        torch.set_num_threads(1)
        folder = sys.argv[1]
        made, x = pickle.load(open(f"{folder}/made", "rb")), torch.load(f"{folder}/x")
        torch.save([(one.logits(x), one.predict(x)) for one in made], f"{folder}/found")
    """
    path = [str(Path(__file__).parent), str(Path(__file__).parents[1]), *filter(None, sys.path)]
    code = f"import sys; sys.path[:0] = {path!r}\n{program}"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert_same(torch.load(tmp_path / "found"), [(one.logits(x), one.predict(x)) for one in made])


@pytest.mark.parametrize("name", KINDS)
def test_it_can_be_exported(name: str, tmp_path: Path) -> None:
    predictor, x = SETTINGS[name](tmp_path).learner.predictor(), batch(50, 3)[0]
    program = torch.export.export(predictor.module(), (x,))
    torch.testing.assert_close(program.module()(x), predictor.logits(x), rtol=1e-5, atol=1e-6)
    assert {*program.state_dict} >= {f"model.{name}" for name, _ in predictor.module().model.named_parameters()}


def test_its_module_takes_inputs_as_they_come_and_is_a_copy() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
    learner = Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1), prepare=_halved)
    x = torch.randint(255, (4, *SHAPE), dtype=torch.uint8)
    predictor = learner.predictor()
    expected = predictor.logits(x)
    assert torch.equal(expected, model(_halved(x)))
    module = predictor.module()
    assert not any(part.training for part in module.modules())
    with torch.no_grad():
        assert torch.equal(module(x), expected)
        for parameter in module.parameters():
            parameter.zero_()
    assert torch.equal(predictor.logits(x), expected)


def _halved(x: Tensor) -> Tensor:
    return x.float() / 2


@pytest.mark.parametrize("name", KINDS)
def test_threads_share_it_and_change_nothing(name: str, tmp_path: Path) -> None:
    """Nor do they wait: the learner's lock is held all the time."""
    learner, x = SETTINGS[name](tmp_path).learner, batch(50)[0]
    predictor = learner.predictor()
    served = predictor._served
    parts = [*served.modules(), *served.network._fast.modules()]
    torch.manual_seed(3)

    def seen() -> Any:
        tensors = [(id(tensor), tensor.clone()) for tensor in (*served.parameters(), *served.buffers())]
        return tensors, [part.training for part in parts], torch.get_rng_state()

    expected, before, problems = predictor.logits(x), seen(), list[Any]()

    def work() -> None:
        try:
            for _ in range(20):
                assert torch.equal(predictor.logits(x), expected)
        except BaseException as problem:
            problems.append(problem)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with learner.lock:
            threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                assert_same(seen(), before)
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert problems == []
    assert_same(seen(), before)


def test_it_cannot_be_altered() -> None:
    predictor = small().predictor()
    with pytest.raises(AttributeError):
        predictor._kind = "values"  # type: ignore[misc]
    assert not any(parameter.requires_grad for parameter in predictor._served.parameters())
    assert not predictor.logits(torch.randn(2, 8)).requires_grad


class Counting(nn.Linear):
    """Counts the samples that pass."""

    passed = 0

    def forward(self, x: Tensor) -> Tensor:
        Counting.passed += len(x)
        return super().forward(x)


@pytest.mark.parametrize("batchnorm", ["auto", "recalibrated", "clean"])
def test_a_prediction_never_waits_for_statistics_of_the_memory(batchnorm: str) -> None:
    learner = small(batchnorm=batchnorm)
    learner.model.append(Counting(3, 3))
    x = torch.randn(1, 8)
    predictor = learner.predictor()
    Counting.passed = 0
    predictor.predict(x)
    assert Counting.passed == 1
    learner.predict(x)
    assert Counting.passed == 2  # the learner has what its predictor re-estimated
    learner.observe(torch.randn(10, 8), torch.randint(3, (10,)))
    Counting.passed = 0
    learner.predict(x)
    assert Counting.passed == (1 if batchnorm == "clean" else 1 + len(learner.memory))


class LayerNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.entrance, self.norm, self.head = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.norm(self.entrance(x)))
        return logits


def seconds(call: Callable[[], Any], calls: int = 20) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return time.perf_counter() - start


def test_one_sample_takes_at_most_three_times_as_long_as_the_bare_model() -> None:
    """The quickest of many short measurements of each, in turn: a busy machine slows both."""
    model, x = LayerNormed(), torch.randn(1, 16)
    learner = Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(50))
    learner.observe(torch.randn(10, 16), torch.randint(4, (10,)))
    bare, predictor = copy.deepcopy(model).eval(), learner.predictor()

    def plainly() -> Tensor:
        with torch.no_grad():
            return bare(x).argmax(1)

    pairs = [(seconds(plainly), seconds(lambda: predictor.predict(x))) for _ in range(500)]
    assert min(own for _, own in pairs) < 3 * min(plain for plain, _ in pairs)


def test_values_and_several_labels() -> None:
    x = torch.randn(5, 8)
    for y in (torch.randn(5, 2), torch.rand(5, 2) > 0.5):
        model = nn.Linear(8, 2)
        loss = nn.MSELoss() if y.is_floating_point() else nn.BCEWithLogitsLoss()
        learner = Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(9), loss=loss)
        learner.observe(x, y)
        predictor = learner.predictor()
        assert_same(predictor.predict(x), learner.predict(x))
        if y.is_floating_point():
            with pytest.raises(InvalidInput, match="use predict"):
                predictor.predict_proba(x)
        else:
            assert_same(predictor.predict_proba(x), learner.predict_proba(x))


def test_many_samples_and_inputs_of_several_parts() -> None:
    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, 2)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            logits: Tensor = self.head(left + right)
            return logits

    model = Summed()
    learner = Replay(model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(9), MostInterfered())
    for x in ((torch.randn(2500, 3), torch.randn(2500, 3)), {"left": torch.randn(4, 3), "right": torch.randn(4, 3)}):
        assert_same(learner.predictor().logits(x), learner.logits(x))


def test_bad_inputs_are_refused_as_by_the_learner() -> None:
    learner = small()
    for x in (torch.randn(2, 5), torch.full((2, 8), torch.nan), "text", torch.tensor(3.0)):
        messages = []
        for one in (learner, learner.predictor()):
            with pytest.raises(Exception) as caught:
                one.predict(x)
            messages.append((type(caught.value), str(caught.value)))
        assert messages[0] == messages[1]


def test_what_cannot_be_copied_is_refused() -> None:
    class Owner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.lock = nn.Linear(3, 2), threading.Lock()

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(x)
            return logits

    model = Owner()
    learner = Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(InvalidInput, match="cannot be copied"):
        learner.predictor()


def test_a_model_that_goes_on_after_its_head_has_no_predictor_of_nearest_means() -> None:
    model = nn.Sequential(nn.Linear(8, 3), nn.Softplus())
    learner = ICaRL(model, torch.optim.SGD(model.parameters(), lr=0.1), ExemplarMemory(9))
    learner.observe(torch.randn(4, 8), torch.tensor([0, 1, 2, 0]), 0)
    with pytest.raises(InvalidInput, match="last layer"):
        learner.predictor()


def test_a_head_alone_has_nearest_means_too() -> None:
    model = nn.Linear(8, 3)
    learner = ICaRL(model, torch.optim.SGD(model.parameters(), lr=0.1), ExemplarMemory(9))
    x = torch.randn(4, 8)
    learner.observe(x, torch.tensor([0, 1, 2, 0]), 0)
    assert_same(learner.predictor().logits(x), learner.logits(x))


def test_gdumbs_has_the_weights_that_a_prediction_would_be_trained_for() -> None:
    model = nn.Linear(8, 3)
    learner = GDumb(model, torch.optim.SGD(model.parameters(), lr=0.5), ClassBalancedMemory(9), epochs=3)
    x, y = torch.randn(9, 8), torch.arange(9) % 3
    learner.observe(x, y)
    before = learner.model.weight.clone()
    predictor = learner.predictor()
    assert torch.equal(learner.model.weight, before)
    assert_same(predictor.logits(x), learner.logits(x))
    learner.end_task()
    assert_same(predictor.logits(x), learner.logits(x))


@pytest.mark.parametrize("first", [nn.Identity, nn.Flatten])
def test_one_sample_that_is_no_batch_is_refused_with_what_to_do(first: type[nn.Module]) -> None:
    model = nn.Sequential(first(), nn.Linear(8, 3))
    learner = Finetune(model, torch.optim.SGD(model.parameters(), lr=0.1))
    learner.observe(torch.randn(4, 8), torch.tensor([0, 1, 2, 0]))
    before, one = frozen(learner.state_dict()), torch.randn(8)
    for predict in (learner.predict, learner.predict_proba, learner.predictor().predict):
        with pytest.raises(InvalidInput, match=r"x is one sample .* x\[None\]"):
            predict(one)
        with pytest.raises(InvalidInput, match="cannot take this batch"):  # another mistake
            predict(torch.randn(2, 7))
        assert predict(one[None]).shape[0] == 1
    assert_same(learner.state_dict(), before)
