"""From a spec to a learner: how methods are put together.

A default value is written once, in the signature of the class that it is for: options read it there (`defaults`), and
builders pass on only what a spec says (`given`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from ..batch import Tree
from ..batchnorm import BatchNormPolicy, policy
from ..errors import InvalidInput
from ..heads import find_head
from ..learners import Learner, Replay
from ..learners.scr import SCR
from ..learners.strong import SETTINGS, SHARED
from ..losses import AsymmetricCrossEntropy, AveragedDistillation, CrossEntropy, DarkExperience
from ..memory import Memory, ReservoirMemory
from ..random import seed_sequence
from ..retrieval import HighestLoss, MostInterfered, Retrieval, Uniform
from ..transforms import Chain, Color, Crop, Flip, Transform
from .batchnorm import Published
from .draws import Draws
from .limits import few_parameters
from .spec import Plain, Spec


@dataclass(frozen=True)
class Problem:
    """What a learner needs to know of the stream it is built for, and the network to use."""

    classes: int
    tasks: int | None
    input_shape: tuple[int, ...]
    prepare: Callable[[Tree], Tree]
    network: Callable[[], nn.Module]
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))


Build = Callable[[Spec, Problem], Learner]


def defaults(function: Callable[..., Any], *names: str, **renamed: str) -> dict[str, Plain]:
    """Return the default values of some arguments of a function or class, by the names of the options for them.

    Args:
        function: Whose signature has the values.
        names: Arguments whose options have the same name.
        renamed: The argument of each option that has another name.
    """
    parameters = inspect.signature(function).parameters
    return {option: parameters[name].default for option, name in ({name: name for name in names} | renamed).items()}


def given(**settings: Any) -> dict[str, Any]:
    """Return the settings that are not None; the constructor knows the others."""
    return {name: value for name, value in settings.items() if value is not None}


def drawn(make: Callable[[], nn.Module], spec: Spec, problem: Problem, name: str = "init") -> nn.Module:
    """Return a network whose initial weights come from the run's seed."""
    with torch.random.fork_rng(devices=[]), few_parameters():
        torch.manual_seed(int(seed_sequence(spec.seed, name).generate_state(1)[0]))
        return make().to(problem.device)


def network_and_optimizer(spec: Spec, problem: Problem) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the network, and plain SGD as in the paper."""
    model = drawn(problem.network, spec, problem)
    return model, torch.optim.SGD(model.parameters(), lr=spec.lr)


def memory(kind: Callable[..., Memory], spec: Spec, problem: Problem) -> Memory:
    """Return the memory of a spec; one that divides its capacity among the tasks gets their number."""
    if spec.capacity is None:
        raise InvalidInput(f"{spec.method} needs a memory; give its capacity")
    tasks = {"tasks": problem.tasks} if "tasks" in inspect.signature(kind).parameters else {}
    return kind(spec.capacity, seed=spec.seed, **tasks)


def settings(spec: Spec, problem: Problem, *names: str) -> dict[str, Any]:
    """Return the arguments that all learners have, and those of the spec's fields that are named and say something."""
    own = given(**{name: getattr(spec, name) for name in ("updates", *names)})
    return {"prepare": problem.prepare, "precision": spec.precision, "seed": spec.seed, **own}


# --------------------------------------------------------------------------------------------- replay, and its parts


def replay(
    retrieval: Callable[[Spec], Retrieval],
    loss: Callable[[Spec], Any],
    all_tasks: bool,
    more: Callable[[Spec], dict[str, Any]] = lambda _: {},
) -> Build:
    """Return a builder of `Replay` with this retrieval and loss: what most methods are.

    Args:
        retrieval: Makes the retrieval.
        loss: Makes the loss.
        all_tasks: Whether the method is defined without tasks, and replays samples of the current one too.
        more: Gives further arguments of `Replay`.
    """

    def build(spec: Spec, problem: Problem) -> Learner:
        own = settings(spec, problem, "budget", "exclude_current_task") | more(spec)
        if spec.batchnorm is not None:
            own["batchnorm"] = batchnorm(spec.batchnorm)
        own |= {"exclude_current_task": False} if all_tasks else {}
        store = memory(ReservoirMemory, spec, problem)
        return Replay(*network_and_optimizer(spec, problem), store, retrieval(spec), loss=loss(spec), **own)

    return build


AUGMENTATIONS: Final[Mapping[str, Callable[[], Transform | None]]] = {
    "none": lambda: None,
    "crop-flip": lambda: Chain(Crop(4), Flip()),
    "crop-flip-color": lambda: Chain(Crop(4), Flip(), Color(0.4, 0.4)),
    "shift": lambda: Crop(1, fill=0),
}
LOSSES: Final[Mapping[str, Callable[[], Any]]] = {
    "cross-entropy": CrossEntropy,
    "ace": AsymmetricCrossEntropy,
    "der": partial(DarkExperience, beta=1.0),
}
PLUS_OPTIONS: Final[Mapping[str, Plain]] = {
    "augment": "none", "average": SHARED["average"], "predict_by": SETTINGS["images"]["predict_by"], "distill": 0.0,
    "loss": "cross-entropy", **defaults(Replay, "replay_weight"),
}  # fmt: skip
"""The options of the strong methods; ``average`` and ``distill`` are off at 0."""


def plus(spec: Spec) -> dict[str, Any]:
    """Return what the strong methods set: augmentation, averaged weights, prediction by the nearest mean."""
    options = spec.options
    augment = chosen(AUGMENTATIONS, "augment", options["augment"])()
    own = {"augment": augment, "average": options["average"] or None, "batchnorm": SHARED["batchnorm"]}
    return own | {name: options[name] for name in ("predict_by", "replay_weight")}


def plus_loss(spec: Spec) -> Any:
    """Return the loss of the strong methods, with distillation from the averaged weights where it is on."""
    loss, distill = chosen(LOSSES, "loss", spec.options["loss"])(), spec.options["distill"]
    return AveragedDistillation(distill, loss=loss) if distill else loss  # type: ignore[arg-type]


SCR_OPTIONS: Final = {"augment": "none", "projection": 128, **defaults(SCR, "temperature")}


def contrastive(spec: Spec, problem: Problem) -> Learner:
    """Return SCR, with a projection of two layers in place of the network's head."""
    options, model = spec.options, drawn(problem.network, spec, problem)
    name, head = find_head(model)
    inputs, width = head.in_features, max(int(options["projection"]), problem.classes)  # type: ignore[arg-type]
    layers = partial(nn.Linear, inputs, inputs), nn.ReLU, partial(nn.Linear, inputs, width)
    model.set_submodule(name, drawn(lambda: nn.Sequential(*(make() for make in layers)), spec, problem, "projection"))
    own = settings(spec, problem, "budget") | {"temperature": options["temperature"], "head": name}
    own["augment"] = chosen(AUGMENTATIONS, "augment", options["augment"])()
    optimizer = torch.optim.SGD(model.parameters(), lr=spec.lr)
    return SCR(model, optimizer, memory(ReservoirMemory, spec, problem), **own)


def chosen(known: Mapping[str, Any], name: str, value: Any) -> Any:
    """Return what an option names."""
    if not isinstance(value, str) or value not in known:
        raise InvalidInput(f"{name} is {value!r}; it must be one of {', '.join(known)}")
    return known[value]


def highest_loss(spec: Spec) -> Retrieval:
    """Return the control that looks at no step ahead."""
    return HighestLoss(**candidates(spec))


def batchnorm(name: str) -> BatchNormPolicy:
    """Return a batch-norm mode of the library, or the lab's own, ``published``."""
    try:
        return Published() if name == "published" else policy(name)
    except InvalidInput as problem:
        raise InvalidInput(f"{problem}; or published, the reference implementation's") from None


def cross_entropy(_: Spec) -> None:
    """Return the loss of `Replay`: its default."""


def uniform(spec: Spec) -> Retrieval:
    """Return ER's retrieval."""
    return Uniform(spec.capacity if spec.candidates == "all" else spec.candidates)  # type: ignore[arg-type]


def most_interfered(spec: Spec, **more: Any) -> Retrieval:
    """Return ER-MIR's retrieval."""
    return MostInterfered(**candidates(spec), **given(criterion=spec.criterion), **more)


def candidates(spec: Spec) -> dict[str, Any]:
    """Return how many candidates are scored, as an argument; "all" is None there."""
    return {"candidates": None} if spec.candidates == "all" else given(candidates=spec.candidates)


def asymmetric(_: Spec) -> AsymmetricCrossEntropy:
    """Return the loss of ER-ACE."""
    return AsymmetricCrossEntropy()


def dark(spec: Spec) -> DarkExperience:
    """Return the loss of DER++."""
    return DarkExperience(alpha=spec.options["alpha"], beta=spec.options["beta"])  # type: ignore[arg-type]


def in_draws(retrieval: Callable[[Spec], Retrieval]) -> Callable[[Spec], Retrieval]:
    """Draw twice with the option ``draws=2``, once for each term of DER++, as published."""

    def build(spec: Spec) -> Retrieval:
        draws = spec.options["draws"]
        if draws not in (1, 2) or isinstance(draws, bool):
            raise InvalidInput(f"draws is {draws!r}; it must be 1 (one replayed batch for both terms) or 2")
        return retrieval(spec) if draws == 1 else Draws(retrieval(spec), 2)

    return build
