"""What every method promises, tested for every one of them, on every network and engine."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import CLASSES, METHODS, Stream, make, modules, run, samples, tiny_stream, trained, world
from rehearse import Finetune, Learner, RehearseError, Step
from rehearse.errors import CheckpointError
from rehearse.learners import GenerativeReplay
from sameness import assert_same, differences, outside

# ------------------------------------------------------------------------------------------------ learning, predicting


def test_observe_returns_what_happened(method: str, network: str) -> None:
    learner = make(method, network=network)
    run(learner, tiny_stream(), stop=12)
    x, y, task = tiny_stream()[12]
    step = learner.observe(x, y, task)
    assert isinstance(step, Step)
    assert isinstance(step.incoming_loss, float)
    assert np.isfinite(step.incoming_loss)
    assert (step.replayed is None) == (step.replayed_loss is None)
    if step.interference is not None:
        assert step.replayed is not None
        assert len(step.interference) == len(step.replayed)
    assert learner.samples_observed == 13 * 5
    assert learner.forward_passes >= 1
    assert learner.task == task


def test_predictions_are_classes_and_probabilities(method: str, network: str) -> None:
    learner = trained(method, network=network)
    for n in (0, 1, 7, 1001):
        x, _ = samples(n, 5, [0, 1, 2, 3])
        classes, probabilities = learner.predict(x), learner.predict_proba(x)
        assert classes.shape == (n,)
        assert not classes.is_floating_point()
        assert probabilities.shape == (n, CLASSES)
        assert bool(probabilities.isfinite().all())
        assert bool((probabilities >= 0).all())
        torch.testing.assert_close(probabilities.sum(1), torch.ones(n).to(probabilities), rtol=1e-4, atol=1e-5)
        assert_same(classes, probabilities.argmax(1))
        assert not probabilities.requires_grad


def test_samples_are_predicted_alone_as_together(method: str, network: str) -> None:
    learner = trained(method, network=network)
    x, _ = samples(6, 5, [0, 1, 2, 3])
    together = learner.predict_proba(x)
    for row in range(6):
        torch.testing.assert_close(learner.predict_proba(x[row : row + 1])[0], together[row], rtol=1e-4, atol=1e-5)


def test_predicting_changes_nothing(method: str, network: str) -> None:
    learner = trained(method, network=network)
    before = (learner.state_dict(), [outside(module) for module in modules(learner)], world())
    x, _ = samples(9, 5, [0, 1, 2, 3])
    first = learner.predict_proba(x)
    learner.predict(x)
    learner.diagnostics()
    assert_same((learner.state_dict(), [outside(module) for module in modules(learner)], world()), before)
    assert_same(learner.predict_proba(x), first)


def test_two_gaussians_are_separated(method: str) -> None:
    learner = make(method, lr=0.2)
    stream = [(*samples(10, number, [0, 1]), 0) for number in range(60)]
    run(learner, stream)
    x, y = samples(200, 999, [0, 1])
    assert (learner.predict(x) == y).float().mean() > 0.95


def test_bytes_and_floats_are_the_same_images(method: str, network: str) -> None:
    stream = [((x * 255).round().to(torch.uint8), y, task) for x, y, task in tiny_stream()]
    floats: Stream = [(x.float() / 255, y, task) for x, y, task in stream]
    learners = [make(method, network=network) for _ in range(2)]
    run(learners[0], stream)
    run(learners[1], floats)
    x, _ = samples(20, 5, [0, 1, 2, 3])
    bytes_ = (x * 255).round().to(torch.uint8)
    assert_same(learners[0].predict_proba(bytes_), learners[1].predict_proba(bytes_.float() / 255))


def test_arrays_work_as_well_as_tensors(method: str) -> None:
    one, other = make(method), make(method)
    for x, y, task in tiny_stream()[:3]:
        one.observe(x, y, task)
        other.observe(x.numpy(), y.tolist(), np.full(len(y), task))
    assert_same(one.state_dict(), other.state_dict())


def test_the_callers_tensors_are_not_changed(method: str) -> None:
    learner = make(method)
    stream = tiny_stream()
    copies = [(x.clone(), y.clone()) for x, y, _ in stream]
    run(learner, stream)
    assert_same([(x, y) for x, y, _ in stream], copies)


# --------------------------------------------------------------------------------------------------------------- tasks


def test_without_tasks_it_works_or_is_refused(method: str) -> None:
    learner = make(method)
    if learner.task_aware:
        before = learner.state_dict()
        with pytest.raises(RehearseError, match="task"):
            learner.observe(*samples(5, 0, [0, 1]))
        assert_same(learner.state_dict(), before)
        return
    for x, y, _ in tiny_stream():
        learner.observe(x, y)
    assert learner.task is None
    assert len(learner.predict(x)) == len(x)


def test_what_is_replayed_enters_the_gradient(method: str) -> None:
    """Without its memory, or without the previous generator, the parameters differ."""
    learner, without = trained(method), make(method)
    without.load_state_dict(learner.state_dict())
    if without.memory is not None:
        assert without.forget(predicate=lambda held: torch.ones(len(held), dtype=torch.bool)) > 0
    elif isinstance(without, GenerativeReplay):
        assert without.past.previous is not None
        without.past = without.past._replace(previous=None)
    else:
        assert isinstance(learner, Finetune)  # the only one that replays nothing
        return
    x, y, task = tiny_stream()[12]
    replayed = learner.observe(x, y, task).replayed
    assert without.observe(x, y, task).replayed is None
    if replayed is None:  # the method trains at the end of the task
        learner.end_task(), without.end_task()
    assert differences(dict(learner.model.named_parameters()), dict(without.model.named_parameters()))


def test_samples_are_removed_by_their_id(method: str) -> None:
    learner = make(method)
    for number, (x, y, task) in enumerate(tiny_stream()):
        learner.observe(x, y, task, id=[f"{number} {row % 2}" for row in range(len(y))])
    even = [f"{number} 0" for number in range(len(tiny_stream()))]
    if learner.memory is None:
        with pytest.raises(RehearseError, match="stores no samples"):
            learner.forget(ids=even)
        return
    held = len(learner.memory)
    removed = learner.forget(ids=even)
    assert 0 < removed < held
    assert len(learner.memory) == held - removed
    assert learner.forget(ids=even) == 0
    learner.observe(*tiny_stream()[-1])


# -------------------------------------------------------------------------------------------------------- random state


def test_seeds_decide_everything(method: str, network: str) -> None:
    states = []
    for seed, noise in ((3, 1), (3, 2), (4, 1)):
        torch.manual_seed(noise)
        np.random.seed(noise)  # noqa: NPY002
        learner = make(method, network=network, seed=seed)
        run(learner, tiny_stream())
        states.append(learner.state_dict())
    assert_same(states[0], states[1])
    assert differences(states[0]["network"], states[2]["network"])


@pytest.mark.parametrize("training", [True, False])
def test_nothing_global_is_changed(method: str, network: str, training: bool) -> None:
    before = world()
    learner = make(method, network=network)
    assert_same(world(), before)
    for module in modules(learner):
        module.train(training)
    around = [{key: outside(module)[key] for key in ("modes", "requires_grad", "grad")} for module in modules(learner)]
    run(learner, tiny_stream())
    learner.load_state_dict(learner.state_dict())
    assert_same(world(), before)
    now = [{key: outside(module)[key] for key in ("modes", "requires_grad", "grad")} for module in modules(learner)]
    assert_same(now, around)


def test_it_learns_under_no_grad(method: str) -> None:
    one, other = make(method), make(method)
    run(one, tiny_stream())
    with torch.no_grad():
        run(other, tiny_stream())
    assert_same(one.state_dict(), other.state_dict())


# --------------------------------------------------------------------------------------------------------------- state


@pytest.mark.parametrize("stop", [8, 11])
def test_a_loaded_learner_resumes_bit_for_bit(method: str, network: str, stop: int, tmp_path: Path) -> None:
    """From inside a task and between two; through torch's safe loader, into a learner of another seed."""
    stream = tiny_stream()
    whole = make(method, network=network)
    run(whole, stream, stop=stop)
    torch.save(whole.state_dict(), tmp_path / "state.pt")
    run(whole, stream, start=stop)
    resumed = make(method, network=network, seed=9)
    resumed.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    run(resumed, stream, start=stop)
    assert_same(resumed.state_dict(), whole.state_dict())
    x, _ = samples(30, 5, [0, 1, 2, 3])
    assert_same(resumed.predict_proba(x), whole.predict_proba(x))


def pickled(learner: Learner) -> Learner:
    return pickle.loads(pickle.dumps(learner))


@pytest.mark.parametrize("copied", [pickled, copy.deepcopy])
def test_a_copied_learner_resumes_bit_for_bit(method: str, copied: Callable[[Learner], Learner]) -> None:
    learner = trained(method)
    other = copied(learner)
    kept = other.state_dict()
    run(learner, tiny_stream(), start=12)
    assert_same(other.state_dict(), kept)  # nothing is shared
    run(other, tiny_stream(), start=12)
    assert_same(other.state_dict(), learner.state_dict())
    x, _ = samples(30, 5, [0, 1, 2, 3])
    assert_same(other.predict_proba(x), learner.predict_proba(x))


def test_a_state_is_a_copy(method: str) -> None:
    learner = trained(method)
    state = learner.state_dict()
    other = make(method)
    other.load_state_dict(state)
    kept = learner.state_dict()
    run(learner, tiny_stream(), start=12)
    run(other, tiny_stream(), start=12)
    assert_same(state, kept)


def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(method: str) -> None:
    state = trained(method, network="normed").state_dict()
    learner = trained(method)
    before = learner.state_dict()
    for bad in (state, {**before, "learner": "Other"}, {k: v for k, v in before.items() if k != "network"}, {}):
        with pytest.raises(CheckpointError):
            learner.load_state_dict(bad)
        assert_same(learner.state_dict(), before)


# ------------------------------------------------------------------------------------------------------------ refusals

X, Y = samples(5, 77, [2, 3])
BAD: dict[str, tuple[Any, Any, Any]] = {
    "wrong shape": (torch.rand(5, 1, 2, 5), Y, 1),
    "no shape": (torch.tensor(1.0), Y, 1),
    "NaN": (torch.where(torch.arange(8).view(1, 2, 4) == 3, torch.nan, X), Y, 1),
    "infinite": (torch.where(torch.arange(8).view(1, 2, 4) == 3, torch.inf, X), Y, 1),
    "label too large": (X, torch.tensor([2, 3, 2, 3, 4]), 1),
    "label negative": (X, torch.tensor([2, 3, 2, 3, -1]), 1),
    "labels of floats": (X, Y.float(), 1),
    "labels of text": (X, ["a"] * 5, 1),
    "labels in two dimensions": (X, Y[:, None], 1),
    "no labels": (X, None, 1),
    "empty": (X[:0], Y[:0], 1),
    "lengths": (X, Y[:4], 1),
    "complex": (X.to(torch.complex64), Y, 1),
    "text": ("digits", Y, 1),
    "nothing": (None, Y, 1),
    "tasks too few": (X, Y, [1, 1]),
    "task negative": (X, Y, -1),
    "task of floats": (X, Y, 1.5),
    "task of text": (X, Y, "second"),
    "overflow": (X * 1e38, Y, 1),
}


def refused(learner: Learner, x: Any, y: Any, task: Any) -> bool:
    try:
        learner.observe(x, y, task)
    except RehearseError:
        return True
    return False


@pytest.mark.parametrize("updates", [1, 3])
def test_bad_input_is_refused_and_changes_nothing(method: str, network: str, updates: int) -> None:
    learner = trained(method, network=network, updates=updates)
    before = (learner.state_dict(), [outside(module) for module in modules(learner)], world())
    for name, (x, y, task) in BAD.items():
        assert refused(learner, x, y, task), name
        now = (learner.state_dict(), [outside(module) for module in modules(learner)], world())
        assert not differences(now, before), (name, differences(now, before))
    learner.observe(X, Y, 1)
    assert differences(learner.state_dict(), before[0])


def test_the_first_batch_can_be_bad_too(method: str) -> None:
    learner = make(method)
    before = learner.state_dict()
    for x, y, task in BAD.values():
        with pytest.raises(RehearseError):
            learner.observe(x, y, task)
        assert_same(learner.state_dict(), before)
    run(learner, tiny_stream())


def test_another_dtype_than_before_is_refused_where_samples_are_stored(method: str) -> None:
    learner = trained(method)
    before = learner.state_dict()
    if learner.memory is not None:
        for x, y in ((X.double(), Y), (X, Y.int()), ((X * 255).to(torch.uint8), Y)):
            with pytest.raises(RehearseError, match="those before"):
                learner.observe(x, y, 1)
            assert_same(learner.state_dict(), before)
    else:
        assert np.isfinite(learner.observe(X.double(), Y.int(), 1).incoming_loss)


def test_updates_before_one_that_fails_are_undone(method: str) -> None:
    """An absurd learning rate: the first of three updates is finite, the next is not."""
    if "updates" not in METHODS[method].uses:
        pytest.skip("it does not train as it observes")
    learner = make(method, lr=1e30, updates=3)
    before = learner.state_dict()
    with pytest.raises(RehearseError, match="finite"):
        learner.observe(*samples(5, 0, [0, 1]), 0)
    assert_same(learner.state_dict(), before)


def test_bad_input_to_predict_is_refused(method: str) -> None:
    learner = trained(method)
    before = learner.state_dict()
    for name in ("wrong shape", "no shape", "NaN", "infinite", "complex", "text", "nothing"):
        for predict in (learner.predict, learner.predict_proba):
            with pytest.raises(RehearseError):
                predict(BAD[name][0])
    assert_same(learner.state_dict(), before)


def test_optimizers_that_need_a_closure_are_refused(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.optim, "SGD", lambda parameters, lr: torch.optim.LBFGS(parameters, lr=lr))
    with pytest.raises(RehearseError, match="LBFGS"):
        make(method)


# -------------------------------------------------------------------------------------------------------------- memory


def live_tensors() -> int:
    gc.collect()
    return sum(issubclass(type(thing), Tensor) for thing in gc.get_objects())  # isinstance would resolve lazy proxies


def test_the_number_of_tensors_does_not_grow(method: str) -> None:
    learner = make(method)
    stream = tiny_stream(4)
    counts = []
    for _ in range(2):
        for x, y, task in stream * 6:
            learner.observe(x, y, task)
        counts.append(live_tensors())
    assert counts[1] <= counts[0], counts
