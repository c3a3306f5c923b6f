"""Calls with an argument that is wrong in some way: each is refused with an error of ours, or works.

Whatever is refused, and whatever only looks, changes nothing: neither the learner nor torch's random state.
"""

from __future__ import annotations

import inspect
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from interrupting import Subject
from small_learners import CLASSES as MORE_CLASSES
from small_learners import SETTINGS
from test_bad_inputs import CLASSES, FEATURES, KINDS, Chance, build, fingerprint, plain, sgd
from torch import Tensor

from rehearse import Batch, ClassBalancedMemory, Learner, MostInterfered, Replay, ReservoirMemory, RingMemory, Uniform
from rehearse.errors import RehearseError
from rehearse.latent import LatentSearch
from rehearse.learners import AGEM, GEM, CodeReplay, CodeSearch, Coefficients, Finetune, GenerativeReplay, ICaRL
from rehearse.learners.gdumb import GDumb
from rehearse.losses import AsymmetricCrossEntropy, DarkExperience
from rehearse.memory import ExemplarMemory, TaskRingMemory
from rehearse.nets import VAE, ConvAutoencoder

from .dividing import divided
from .result import Result

IMAGES = {
    "mapped": "replay mi2, mapped memory, batch 4",
    "gdumb": "GDumb sgd norm 2",
    "generative": "GenerativeReplay mir sgd 1",
    "codes": "CodeReplay True False adam 1",
}
"""Learners of 1 × 2 × 4 images; the others are those of the contract."""
LIFE = 100  # calls to one learner, before it is made anew
GOOD = 10  # calls until the next batch with nothing wrong
MODEL = plain()
OPTIMIZER, STORED = sgd(MODEL), Batch(torch.zeros(1, FEATURES), torch.zeros(1).long(), 0)


class Bad(Chance):
    """Arguments of which at least one is wrong."""

    def good_x(self, n: int) -> Any:
        return self.tensor(n, 1, 2, 4).sigmoid() if self.kind in IMAGES else super().good_x(n)

    def good_y(self, n: int) -> Any:
        wide = self.kind in IMAGES
        return torch.from_numpy(self.numpy.integers(0, MORE_CLASSES, n)) if wide else super().good_y(n)

    def batch(self, *, id: bool = True, spoil: bool = True) -> dict[str, Any]:
        """Return the arguments of `observe`, at least one of them spoiled."""
        n = self.samples() if spoil else 5
        x, y = self.good_x(n), self.good_y(n)
        good = {"x": x, "y": y, "task": self.good_task(), **({"id": None} if id else {})}
        bad = {
            "x": lambda: self.spoiled(x),
            "y": lambda: self.spoiled(y),
            "task": lambda: self.bad_task(n),
            "id": lambda: self.bad_id(n),
        }
        return good | ({name: bad[name]() for name in self.some(good)} if spoil else {})

    def some(self, names: Any) -> list[str]:
        """Return one of these names, or now and then several."""
        return [self.choose(*names), *(name for name in names if self.often(0.1))]

    def junk(self) -> Any:
        """Return what is valid for hardly any argument."""
        return self.choose(
            None, "text", "", b"bytes", -1, 0, 1, 1.5, -0.0, 1e300, torch.nan, torch.inf, 2**63, -(2**70), 1j, True, [],
            {}, (), [1, 2], {"a": 1}, object(), torch.zeros(2), torch.zeros(0), torch.tensor(torch.nan),
            torch.zeros(()), Uniform(), ReservoirMemory(3), MODEL, OPTIMIZER, STORED, Path("/dev/null"),
        )  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ calls


def observe(learner: Learner, bad: Bad) -> None:
    learner.observe(**bad.batch())


def predict(learner: Learner, bad: Bad) -> None:
    call = bad.choose(learner.predict, learner.predict_proba, learner.logits, learner.predictor().logits)
    call(bad.spoiled(bad.good_x(bad.samples())))


def diagnose(learner: Learner, bad: Bad) -> None:
    learner.diagnose(**bad.batch(id=False), limit=bad.choose(None, None, 5, 0, -1, "5", 1.5, [], torch.nan))


def forget(learner: Learner, bad: Bad) -> None:
    predicates: list[Callable[[Batch], Any]] = [
        lambda samples: samples.y, lambda samples: samples.slots, lambda samples: None, lambda samples: [True],
        lambda samples: samples.y.double().requires_grad_(), lambda samples: True,
        lambda samples: samples.slots[:, None],
    ]  # fmt: skip
    junk = bad.junk()
    arguments = bad.choose(
        {}, {"slots": [99, -1]}, {"ids": 3}, {"slots": [1], "ids": [2]}, {"slots": ["a"]}, {"slots": 3},
        {"slots": [1.5]}, {"slots": [2**70]}, {"ids": [1.5]}, {"ids": "anna"}, {"ids": ["\ud800"]}, {"ids": [None]},
        {"ids": [2**70]}, {"ids": [[1]]}, {"predicate": bad.choose(*predicates)},
        {"predicate": None if callable(junk) else junk}, {"ids": junk}, {"slots": junk},
    )  # fmt: skip
    learner.forget(**arguments)


def remember(learner: Learner, bad: Bad) -> None:
    batch = bad.batch(id=False)
    item = bad.choose(tuple(batch.values()), tuple(batch.values())[:2], batch["x"], batch, bad.junk())
    learner.remember(bad.choose([item], [item], item, bad.junk()), bad.choose(None, None, 3, 0, -1, 2.5, "3"))


def grow(learner: Learner, bad: Bad) -> None:
    learner.grow(bad.choose(0, -3, 1, "4", 2.5, CLASSES, torch.nan, bad.junk()))


def begin_task(learner: Learner, bad: Bad) -> None:
    batch = bad.batch(id=False)
    learner.begin_task(bad.choose(Batch(**batch), bad.junk()), bad.choose(0, batch["task"], bad.junk()))


def load_state_dict(learner: Learner, bad: Bad) -> None:
    state = learner.state_dict() if bad.kind != "mapped" else {"learner": type(learner).__name__}
    other = {**state, bad.choose(*state): bad.junk()}
    without = {name: part for name, part in state.items() if name != bad.choose(*state)}
    learner.load_state_dict(bad.choose(other, other, other, without, bad.junk()))


def classifier(name: str = "model") -> dict[str, Any]:
    model = plain()
    return {name: model, "optimizer": sgd(model)}


def generative() -> dict[str, Any]:
    generator = VAE((3,), hidden=4, latent=2)
    return {**classifier("classifier"), "generator": generator, "generator_optimizer": sgd(generator)}


def codes() -> dict[str, Any]:
    coder = ConvAutoencoder((1, 2, 4), channels=2, depth=1)
    return {
        **classifier("classifier"),
        "autoencoder": coder,
        "autoencoder_optimizer": sgd(coder),
        "memory": ReservoirMemory(9),
    }


def with_memory(memory: Callable[..., Any]) -> dict[str, Any]:
    return {**classifier(), "memory": memory(9)}


CONSTRUCTORS: dict[Callable[..., Any], Callable[[], dict[str, Any]]] = {
    Replay: partial(with_memory, ReservoirMemory),
    Finetune: classifier,
    AGEM: partial(with_memory, TaskRingMemory),
    GEM: partial(with_memory, TaskRingMemory),
    ICaRL: partial(with_memory, ExemplarMemory),
    GDumb: partial(with_memory, ClassBalancedMemory),
    GenerativeReplay: generative,
    CodeReplay: codes,
    **{
        memory: lambda: {"capacity": 9} for memory in (ReservoirMemory, RingMemory, ClassBalancedMemory, TaskRingMemory)
    },
    MostInterfered: dict,
    DarkExperience: dict,
    AsymmetricCrossEntropy: dict,
    LatentSearch: dict,
    CodeSearch: dict,
    Coefficients: dict,
}
"""What is constructed, and arguments that it can be constructed from."""


def construct(learner: Learner, bad: Bad) -> None:
    constructor = bad.choose(*CONSTRUCTORS)
    with torch.random.fork_rng():
        good, parameters = CONSTRUCTORS[constructor](), inspect.signature(constructor).parameters.values()
    names = [one.name for one in parameters if one.kind is not one.VAR_KEYWORD]
    spoiled = {name: bad.junk() for name in bad.some(names)} if names else {}
    made = constructor(**good | spoiled)
    if isinstance(made, Learner) and made.updates < 10 and not any(map(callable, spoiled.values())):
        made.observe(bad.tensor(5, FEATURES), torch.arange(5) % CLASSES, 0)


LEARNING = [observe, observe, observe, forget, remember, grow, begin_task, load_state_dict]
LOOKING = [predict, diagnose, construct]


# ------------------------------------------------------------------------------------------------------- the suite


def run(tries: int, seed: int) -> Result:
    """Make so many calls."""
    failures = list[str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy and torch may grumble about what they are given
        for number, (kind, calls) in enumerate(divided(tries, [*KINDS, *IMAGES])):
            failures += [f"{kind}: {failure}" for failure in tormented(kind, calls, Bad([seed, number], kind))]
    return Result(tries, failures)


def tormented(kind: str, calls: int, bad: Bad) -> list[str]:
    """Make so many calls to learners of this kind; return what was wrong."""
    failures = list[str]()
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(SETTINGS[IMAGES[kind]], Path(folder)) if kind in IMAGES else None
        left = 0
        for number in range(calls):
            if not left:
                learner, left = build(kind) if subject is None else subject.new().learner, LIFE
                before = everything(learner)
            call = bad.choose(*LEARNING, *LOOKING)
            try:
                accepted = outcome(partial(call, learner, bad))
                after = everything(learner)
                if after != before and not (accepted and call in LEARNING):
                    raise AssertionError("the learner, or torch's random state, has changed")
                before = after
                if number % GOOD == 0:
                    outcome(partial(learner.observe, **bad.batch(spoil=False)))
                    before = everything(learner)
            except Exception as problem:
                failures.append(f"{call.__name__}: {''.join(traceback.format_exception(problem)[-3:])}")
                left = 0
            else:
                left -= 1
    return failures


def outcome(call: Callable[[], Any]) -> bool:
    """Return whether a call was accepted; any error but ours is raised."""
    try:
        call()
    except RehearseError:
        return False
    return True


def everything(learner: Learner) -> bytes:
    """Return a digest of what must not change; refuse parameters that are not finite."""
    parameters: list[Tensor] = [
        parameter for network in learner._networks() for parameter in network.model.parameters()
    ]
    if not all(bool(parameter.isfinite().all()) for parameter in parameters):
        raise AssertionError("parameters are not finite")
    return fingerprint(learner) + torch.get_rng_state().numpy().tobytes() + bytes([torch.is_grad_enabled()])
