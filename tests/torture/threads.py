"""Four threads that predict while another learns.

Every prediction, of the learner or of a predictor that it has published, must be the one of a state that the learner
went through. Those states are found afterwards: an equal learner observes the same batches alone. The learner must also
end in the same state, bit for bit, with torch's global random state where it was. In half of the rounds a second
learner learns in a thread of its own; it must learn what it learns alone.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, product
from pathlib import Path
from threading import Event
from typing import Any

import torch
from interrupting import state_of
from small_learners import SETTINGS, batch
from test_threads import Thread

from rehearse import Learner
from rehearse.serving import Predictor
from sameness import differences

from .dividing import divided
from .result import Result

THREADS = 4
PUBLISHED = 5  # steps between two predictors
PAUSE = 3e-4  # seconds between two steps, in which readers get the lock
SWITCH = 1e-4  # seconds after which Python switches threads
QUERIES = [batch(number, size)[0] for number, size in ((100, 1), (101, 1), (102, 3))]
ANSWERS = ("logits", "predict_proba")
LEARNERS = [
    "replay mi2 ce sgd 1 chain",
    "replay uniform der adam 1 chain",
    "replay mi2 ce momentum 1 norm auto",
    "replay mi2, mapped memory, batch 4",
    "AGEM sgd 1 norm",
    "ICaRL task sgd 1 norm 4",
]
DRAWING = ["replay mi2 ce sgd 1 dropout", "GenerativeReplay mir sgd 1"]
"""Learners that draw from torch while they train. Beside another that trains they are not reproducible."""
SLOW, PART = "CodeReplay True True adam 1", 50
"""A learner that encodes and decodes what it predicts, and one of how many predictions it makes."""
ROUNDS = [*product(LEARNERS, (False, True)), *product(DRAWING, (False,))]
"""Learners, and whether a second one learns beside them."""
SECOND = "replay mi2 ce momentum 1 norm clean"

Answer = tuple[int, str, bytes]


def run(tries: int, seed: int) -> Result:
    """Make so many predictions, in all."""
    failures, slow = list[str](), tries // PART
    for (name, second), predictions in [*divided(tries - slow, ROUNDS), *divided(slow, [(SLOW, False)])]:
        with tempfile.TemporaryDirectory() as folder, switches():
            failures += [f"{name}: {failure}" for failure in beside(name, second, predictions, seed, Path(folder))]
    return Result(tries, failures)


@contextlib.contextmanager
def switches() -> Iterator[None]:
    """Let Python switch threads more often than usual."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH)
    yield
    sys.setswitchinterval(usual)


def beside(name: str, second: bool, predictions: int, seed: int, folder: Path) -> list[str]:
    """Predict so often beside a learner of this name; return what was wrong."""
    pair = twins(name, folder / "first")
    other = twins(SECOND, folder / "second") if second else ()
    learner, published, done = pair[0], [pair[0].predictor()], Event()
    answers: list[set[Answer]] = [set() for _ in range(THREADS)]

    def publish() -> None:
        published[0] = learner.predictor()

    def read(times: int, found: set[Answer]) -> None:
        for number in range(times):
            source = learner if number % 2 else published[0]
            found.add(answer(source, number // 4 % len(QUERIES), ANSWERS[number // 2 % 2]))

    torch.manual_seed(seed)
    world = torch.get_rng_state()
    learning = [
        Working(partial(learn, learner, done, publish)),
        *(Working(partial(learn, one, done)) for one in other[:1]),
    ]
    reading = [Working(partial(read, times, found)) for found, times in divided(predictions, answers)]
    failures = [failure for thread in reading for failure in thread.failures()]
    done.set()
    failures += [failure for thread in learning for failure in thread.failures()]
    if failures:
        return failures
    if not second and not torch.equal(torch.get_rng_state(), world):
        failures.append("torch's global random state has moved")
    wrong = set[Answer]().union(*answers) - went_through(pair[1], learning[0].result)
    failures += [f"{how} of query {query} are of no state: {content.hex()}" for query, how, content in wrong]
    failures += differences(*(comparable(one, second) for one in pair))
    if second:
        went_through(other[1], learning[1].result)
        failures += differences(*(comparable(one, second) for one in other))
    return failures


def twins(name: str, folder: Path) -> tuple[Learner, Learner]:
    """Return two equal learners."""
    for part in ("together", "alone"):
        (folder / part).mkdir(parents=True)
    return SETTINGS[name](folder / "together").learner, SETTINGS[name](folder / "alone").learner


def learn(learner: Learner, done: Event, publish: Callable[[], None] = lambda: None) -> int:
    """Observe batches until it is done; return how many."""
    for number in count():
        if done.wait(PAUSE):
            return number
        learner.observe(*batch(number))
        if number % PUBLISHED == 0:
            publish()
    raise AssertionError


def went_through(learner: Learner, steps: int) -> set[Answer]:
    """Return all answers of all states on the way."""
    found = every_answer(learner)
    for number in range(steps):
        learner.observe(*batch(number))
        found |= every_answer(learner)
    return found


def every_answer(learner: Learner) -> set[Answer]:
    return {answer(learner, query, how) for query in range(len(QUERIES)) for how in ANSWERS}


def answer(source: Learner | Predictor, query: int, how: str) -> Answer:
    return query, how, getattr(source, how)(QUERIES[query]).numpy().tobytes()


def comparable(learner: Learner, second: bool) -> dict[str, Any]:
    """Return the state; two that train at once exchange their random states, which neither uses."""
    state = state_of(learner)
    return {name: part for name, part in state.items() if not (second and name == "random")}


class Working(Thread):
    """A thread with a result, or an exception."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.result: Any = None
        super().__init__(lambda: setattr(self, "result", work()))

    def failures(self) -> list[str]:
        """Wait for the end, and return what was raised."""
        try:
            self.join(None)
        except Exception as problem:
            return ["".join(traceback.format_exception(problem))]
        return []
