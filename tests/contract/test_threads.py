"""All public methods may be called from any thread, and looking never changes the model, not even for a moment."""

from __future__ import annotations

import copy
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_learners import SETTINGS, batch, build
from torch import nn

import rehearse
from conftest import METHODS, make, tiny_stream, trained
from rehearse import Batch, Learner, Memory, MostInterfered, Replay, RingMemory, random
from rehearse.errors import RehearseError
from sameness import assert_same, differences

LEARNERS = [
    "replay mi2 ce sgd 1 chain",
    "replay mi2 ce sgd 1 dropout",
    "replay mi2 ce sgd 1 norm auto",
    "replay head der momentum 1 norm published",
    "GEM sgd 1 norm",
    "ICaRL task sgd 1 norm 4",
    "GenerativeReplay mir sgd 1",
    "CodeReplay True True adam 1",
]
LOOKS_AT_ONCE = 40  # beside a call that goes on and on
LOOKS: dict[str, Callable[[Learner], Any]] = {
    "predict": lambda learner: learner.predict(batch(7)[0]),
    "predict_proba": lambda learner: learner.predict_proba(batch(7)[0]),
    "diagnose": lambda learner: learner.diagnose(*batch(7)[:2]),
}


@pytest.fixture(autouse=True)
def frequent_switches() -> Iterator[None]:
    """Let Python switch threads as often as it can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


class Thread(threading.Thread):
    """A thread whose exception is raised by `join`."""

    def __init__(self, work: Callable[[], Any]) -> None:
        super().__init__(daemon=True)
        self.work, self.problem = work, None
        self.start()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as problem:
            self.problem = problem

    def join(self, timeout: float | None = 60) -> None:
        super().join(timeout)
        assert not self.is_alive()
        if self.problem is not None:
            raise self.problem


def repeated(call: Callable[[], Any], times: int) -> Callable[[], None]:
    def work() -> None:
        for _ in range(times):
            call()

    return work


def live(model: nn.Module) -> dict[str, Any]:
    """Return what another thread can see of a model without calling it."""
    tensors = [*model._parameters.values(), *model._buffers.values()]
    return {
        "objects": [(name, id(tensor)) for name, tensor in [*model.named_parameters(), *model.named_buffers()]],
        "modes": [module.training for module in model.modules()],
        "forwards": [name for name, module in model.named_modules() if "forward" in vars(module)],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()],
        "own": [id(tensor) for tensor in tensors],
    }


def watch(call: Callable[[], Any], times: int, see: Callable[[], Any]) -> None:
    """Call in one thread, at least so often, and look from another until both have been at it together."""
    before, looks, calls, done = see(), 0, itertools.count(1), threading.Event()

    def work() -> None:
        while next(calls) <= times or not done.is_set():
            call()

    thread = Thread(work)
    try:
        while thread.is_alive():
            looks += 1
            found = differences(see(), before)
            assert not found, found
            if looks > LOOKS_AT_ONCE:
                done.set()
    finally:
        done.set()
        thread.join()
    assert looks > LOOKS_AT_ONCE
    assert not differences(see(), before)


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("name", LEARNERS)
def test_looking_changes_nothing_that_another_thread_can_see(name: str, look: str, tmp_path: Path) -> None:
    learner = SETTINGS[name](tmp_path).learner
    if look == "diagnose" and learner.memory is None:
        return
    models = [network.model for network in learner._networks()]

    def see() -> Any:
        return [(live(model), {key: value.clone() for key, value in model.state_dict().items()}) for model in models]

    watch(lambda: LOOKS[look](learner), 30, see)


@pytest.mark.parametrize("name", LEARNERS)
def test_observing_replaces_nothing_that_another_thread_can_see(name: str, tmp_path: Path) -> None:
    """Parameters, buffers, modes and forwards remain the same objects; with a rate of 0 also the values do."""
    case = SETTINGS[name](tmp_path)
    for network in case.learner._networks():
        for group in network.optimizer.param_groups:
            group["lr"] = 0.0

    def see() -> Any:
        models = [network.model for network in case.learner._networks()]
        return [(live(model), [value.clone() for value in model.parameters()]) for model in models]

    watch(lambda: case.learner.observe(case.x, case.y, case.task), 15, see)


@pytest.mark.parametrize("name", LEARNERS)
def test_predicting_draws_no_random_numbers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's generator belongs to all threads: one that draws meanwhile must not see it moved, and then moved back."""
    learner = SETTINGS[name](tmp_path).learner
    torch.manual_seed(3)
    watch(lambda: learner.predict(batch(7)[0]), 20, torch.get_rng_state)

    def used() -> Any:
        raise AssertionError("a prediction used torch's generator")

    monkeypatch.setattr(random, "torch_generators", used)
    learner.predict(batch(8)[0])


def replay(seed: int = 0) -> Replay:
    model, optimizer = build("dropout", "momentum")
    return Replay(model, optimizer, RingMemory(1000), MostInterfered(8, "mi2"), budget=4, seed=seed)


def test_two_writers_and_three_readers_do_the_same_as_one_after_the_other() -> None:
    shared, x = replay(), batch(50)[0]
    numbers, taking, seen = iter(range(40)), threading.Lock(), list[Any]()

    def write() -> None:
        while True:
            with taking:
                number = next(numbers, None)
            if number is None:
                return
            shared.observe(*batch(number), id=[number] * 4)

    def read() -> None:
        seen.append(shared.logits(x))
        shared.diagnose(*batch(51)[:2]) if len(shared.memory) else None
        shared.state_dict()

    writers = [Thread(write) for _ in range(2)]
    readers = [Thread(repeated(read, 15)) for _ in range(3)]
    for thread in (*writers, *readers):
        thread.join()
    order = shared.memory.all().columns["id"][::4].tolist()
    assert sorted(order) == list(range(40))
    alone = replay()
    possible = [alone.logits(x)]
    for number in order:
        alone.observe(*batch(number), id=[number] * 4)
        possible.append(alone.logits(x))
    assert_same(shared.state_dict(), alone.state_dict())
    assert all(any(torch.equal(one, other) for other in possible) for one in seen)


def test_learners_in_two_threads_do_not_disturb_each_other() -> None:
    learners = [replay(0), replay(1)]
    threads = [Thread(lambda one=one: [one.observe(*batch(n)) for n in range(30)]) for one in learners]
    for thread in threads:
        thread.join()
    assert [learner.samples_observed for learner in learners] == [120, 120]
    for learner in learners:
        assert all(bool(parameter.isfinite().all()) for parameter in learner.model.parameters())


def test_learners_that_draw_nothing_learn_in_two_threads_what_each_learns_alone() -> None:
    def learner(seed: int) -> Replay:
        model, optimizer = build("norm", "momentum")
        return Replay(model, optimizer, RingMemory(60, seed=seed), MostInterfered(8), budget=4, seed=seed)

    def learn(one: Replay) -> None:
        for number in range(20):
            one.observe(*batch(number))
            one.predict(batch(50)[0])

    together, alone = [learner(0), learner(1)], [learner(0), learner(1)]
    for thread in [Thread(lambda one=one: learn(one)) for one in together]:
        thread.join()
    for one, other in zip(together, alone, strict=True):
        learn(other)
        assert_same(one.model.state_dict(), other.model.state_dict())
        assert_same(one.memory.state_dict(), other.memory.state_dict())


def test_checkpoints_saved_while_another_thread_learns_are_consistent(tmp_path: Path) -> None:
    learner = replay()
    thread = Thread(lambda: [learner.observe(*batch(n)) for n in range(60)])
    paths = []
    while thread.is_alive():
        paths.append(tmp_path / str(len(paths)))
        rehearse.save(learner, paths[-1])
    thread.join()
    assert len(paths) > 3
    steps = set()
    for path in paths:
        loaded = replay()
        rehearse.load(path, into=loaded)
        assert loaded.samples_observed == loaded.memory.seen == len(loaded.memory)
        assert loaded.progress.steps * 4 == loaded.samples_observed
        steps.add(loaded.progress.steps)
        loaded.observe(*batch(99))
    assert len(steps) > 1


class Watched:
    """A lock that notes which threads want it."""

    def __init__(self) -> None:
        self.lock, self.wanted = threading.RLock(), set[int | None]()

    def __enter__(self) -> None:
        self.wanted.add(threading.get_ident())
        self.lock.acquire()

    def __exit__(self, *_: object) -> None:
        self.lock.release()


def calls(learner: Learner) -> dict[str, Callable[[], object]]:
    """Return all public calls of a learner that read or change it."""
    (x, y, task), state = tiny_stream()[12], learner.state_dict()
    made: dict[str, Callable[[], object]] = {
        "observe": lambda: learner.observe(x, y, task),
        "predict": lambda: learner.predict(x),
        "predict_proba": lambda: learner.predict_proba(x),
        "logits": lambda: learner.logits(x),
        "predictor": learner.predictor,
        "diagnose": lambda: learner.diagnose(x, y, task),
        "diagnostics": learner.diagnostics,
        "forget": lambda: learner.forget(predicate=lambda held: held.y >= 0),
        "remember": lambda: learner.remember([(x, y, task)]),
        "grow": lambda: learner.grow(9),
        "begin_task": lambda: learner.begin_task(Batch(x, y, 7), 7),
        "end_task": learner.end_task,
        "to": lambda: learner.to("cpu"),
        "state_dict": learner.state_dict,
        "load_state_dict": lambda: learner.load_state_dict(state),
        "confirm": lambda: learner.confirm(state),
        "optimizer": lambda: setattr(learner, "optimizer", learner.optimizer),
        "generator_optimizer": lambda: setattr(learner, "generator_optimizer", learner.generator_optimizer),
    }
    own = {name for kind in type(learner).__mro__[: type(learner).__mro__.index(Learner)] for name in vars(kind)}
    kept = vars(Learner).keys() - {"begin_task", "end_task", "diagnostics"} | own  # those three do nothing by default
    return {name: call for name, call in made.items() if name in kept}


@pytest.mark.parametrize("name", {type(make(name)): name for name in METHODS}.values())
def test_every_call_waits_for_the_lock_or_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner, refused = trained(name), list[str]()
    learner.lock = lock = Watched()  # type: ignore[assignment]

    def under_lock(call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            assert lock.lock._is_owned()  # type: ignore[attr-defined]
            return call(*arguments, **options)

        return guarded

    for changing in ("keep", "discard", "load_state_dict"):  # some calls need the lock several times
        monkeypatch.setattr(Memory, changing, under_lock(getattr(Memory, changing)))

    def refusable(call: Callable[[], object]) -> Callable[[], None]:
        def work() -> None:
            try:
                call()
            except RehearseError as problem:
                refused.append(str(problem))

        return work

    with lock:
        before, threads = learner.state_dict(), dict[str, Thread]()
        for call, made in calls(learner).items():
            number, threads[call] = len(refused), Thread(refusable(made))
            while threads[call].is_alive() and threads[call].ident not in lock.wanted:
                time.sleep(1e-3)
            assert threads[call].ident in lock.wanted or len(refused) > number, call
        assert_same(learner.state_dict(), before)
    for thread in threads.values():
        thread.join()


def test_a_copy_has_a_lock_of_its_own() -> None:
    learner = replay()
    learner.observe(*batch(0))
    other = copy.deepcopy(learner)
    with learner.lock:
        Thread(lambda: other.observe(*batch(1))).join()
    assert (learner.samples_observed, other.samples_observed) == (4, 8)
