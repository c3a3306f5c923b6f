"""The methods by name: what `rehearse run NAME` builds.

A new method is one file in learners/, one entry in METHODS and one page in docs/methods/ (the entry and the page, if
only the loss or the retrieval differs). Its options, with their defaults, are read from the constructor. The contract
tests run for every entry.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from ..batch import Tree, tree_map
from ..errors import InvalidInput
from ..learners import AGEM, GEM, CodeSearch, Finetune, ICaRL, Learner, Replay
from ..learners.gdumb import GDumb
from ..losses import DarkExperience
from ..memory import ClassBalancedMemory, ExemplarMemory, Memory, TaskRingMemory
from ..network import prepare_unit
from ..retrieval import MostInterfered, Retrieval
from . import builders
from .builders import Build, defaults
from .builders import Problem as Problem
from .extensions import did_you_mean, find
from .generative_builder import GENERATOR_OPTIONS, SEARCH_OPTIONS, generative
from .hybrid_builder import CODE_OPTIONS, CODE_SEARCH_OPTIONS, WITHOUT_PART, coded
from .spec import LARGEST, MOST_OTHERWISE, Plain, Spec, merge, stream_settings
from .streams import STREAMS

COMMON = frozenset({"capacity", "updates", "budget", "candidates", "criterion", "batchnorm", "exclude_current_task"})
"""The fields of a spec that only some methods use."""
SCORING: Final = frozenset({"candidates", "criterion"})
"""Those of them that only a retrieval reads."""
SHARED: Final = frozenset({"model", "optimizer", "memory", "loss", "prepare", "precision", "clip", "seed"})
"""The arguments of a learner that no option sets."""


@dataclass(frozen=True)
class Method:
    """A name on the command line.

    Attributes:
        summary: One line for the command line.
        build: Makes the learner.
        uses: The fields of a spec that this method reads.
        options: Its own hyper-parameters with their defaults.
        not_preparing: Those of the options that do not change what it prepares before a task (None: it prepares
            nothing that another run could use).
        iid_epochs: How often the shuffled stream is passed (0: the stream as it comes).
        version: Raised by hand when the method's numbers change.
        candidates: How many there are if neither the stream's settings nor the user say it.
    """

    summary: str
    build: Build
    uses: frozenset[str] = frozenset()
    options: Mapping[str, Plain] = field(default_factory=dict)
    not_preparing: frozenset[str] | None = None
    iid_epochs: int = 0
    version: int = 1
    candidates: int | None = None

    @property
    def scores(self) -> bool:
        """Whether it searches for what the coming update interferes with."""
        return "criterion" in self.uses or "search_steps" in self.options


def learner(
    summary: str, kind: Callable[..., Learner], store: Callable[..., Memory] | None = None, **more: Any
) -> Method:
    """Return the entry of a learner in a file of its own.

    What its constructor takes says the rest: fields of a spec that it has arguments for are used, and its other
    arguments are the method's options.

    Args:
        summary: One line for the command line.
        kind: The class.
        store: The class of its memory, if it has one.
        more: Further fields of `Method`.
    """
    parameters = inspect.signature(kind).parameters.values()
    arguments = [one.name for one in parameters if one.name not in SHARED and one.kind is not one.VAR_KEYWORD]
    used = [name for name in arguments if name in COMMON]
    options = defaults(kind, *(name for name in arguments if name not in COMMON))

    def build(spec: Spec, problem: Problem) -> Learner:
        parts = [*builders.network_and_optimizer(spec, problem)]
        stores = [] if store is None else [builders.memory(store, spec, problem)]
        return kind(*parts, *stores, **builders.settings(spec, problem, *used), **spec.options)

    return Method(summary, build, frozenset(used) | ({"capacity"} if store else set()), options, **more)


def replay(
    summary: str,
    retrieval: Callable[[Spec], Retrieval],
    loss: Callable[[Spec], Any] = builders.cross_entropy,
    options: Mapping[str, Plain] | None = None,
    *,
    reads: frozenset[str] = frozenset(),
    all_tasks: bool = False,
    **more: Any,
) -> Method:
    """Return the entry of a method that is `Replay` with another retrieval or loss; see `builders.replay`.

    The fields ``candidates`` and ``criterion`` of its spec are None unless the retrieval ``reads`` them.
    """
    options = options or {}
    uses = (COMMON - SCORING | reads) - ({"exclude_current_task"} if all_tasks else set())
    retrieval = builders.in_draws(retrieval) if "draws" in options else retrieval
    return Method(summary, builders.replay(retrieval, loss, all_tasks, **more), uses, options)


CANDIDATES: Final = frozenset({"candidates"})
at_random = partial(replay, retrieval=builders.uniform, reads=CANDIDATES)
plus = partial(replay, loss=builders.plus_loss, options=builders.PLUS_OPTIONS, more=builders.plus)
interfered = partial(replay, retrieval=builders.most_interfered, reads=SCORING)
imagined = partial(Method, build=generative, uses=frozenset({"updates"}))
from_codes = partial(Method, build=coded, not_preparing=WITHOUT_PART)
CODES = frozenset({"capacity", "updates", "budget", "exclude_current_task"})
DARK_OPTIONS = {**defaults(DarkExperience, "alpha", "beta"), "draws": 1}

METHODS: dict[str, Method] = {
    "finetune": learner("a step on each batch, no replay: the lower bound", Finetune),
    "iid-online": learner("one pass over the shuffled stream: an upper bound", Finetune, iid_epochs=1),
    "iid-offline": learner("five passes over the shuffled stream: an upper bound", Finetune, iid_epochs=5),
    "er": at_random("experience replay of stored samples at random"),
    "er-mir": interfered("experience replay of the stored samples that the coming update interferes with most"),
    "er-mir-head": interfered(
        "ER-MIR that looks ahead with the last layer alone: one pass through the body instead of two",
        retrieval=partial(builders.most_interfered, layers="head"),
    ),
    "er-plus": plus("replay done well: augmentation, averaged weights, the nearest mean", builders.uniform),
    "er-plus-mir": plus("er-plus of the most interfered samples", builders.most_interfered, reads=SCORING),
    "er-plus-loss": plus("er-plus of the samples of highest loss", builders.highest_loss, reads=CANDIDATES),
    "er-ace": at_random(
        "ER with the asymmetric loss: incoming samples do not push away the classes that are absent",
        loss=builders.asymmetric,
        all_tasks=True,
    ),
    "er-ace-mir": interfered("ER-ACE of the most interfered samples", loss=builders.asymmetric, all_tasks=True),
    "der": at_random(
        "DER++: stored samples are replayed with the logits that they were stored with",
        loss=builders.dark,
        options=DARK_OPTIONS,
        all_tasks=True,
    ),
    "der-mir": interfered(
        "DER++ of the most interfered samples", loss=builders.dark, options=DARK_OPTIONS, all_tasks=True
    ),
    "gem": learner("GEM: no step that raises the loss of a past task", GEM, TaskRingMemory),
    "agem": learner("A-GEM: no step that raises the average loss of the past", AGEM, TaskRingMemory),
    "icarl": learner(
        "iCaRL: exemplars chosen by herding, distillation, the nearest mean of exemplars", ICaRL, ExemplarMemory
    ),
    "gdumb": learner("GDumb: training on a class-balanced memory alone, from scratch", GDumb, ClassBalancedMemory),
    "scr": Method(
        "SCR: supervised contrastive replay, the nearest mean of what enters the projection",
        builders.contrastive,
        frozenset({"capacity", "updates", "budget"}),
        builders.SCR_OPTIONS,
    ),
    "gen": imagined(
        "replay of samples that a generator, itself learned from the stream, imagines", options=GENERATOR_OPTIONS
    ),
    "gen-mir": imagined(
        "replay of imagined samples, searched for what the coming update interferes with most",
        options=GENERATOR_OPTIONS | SEARCH_OPTIONS,
    ),
    "ae": from_codes(
        "replay from a memory of codes that an autoencoder, itself learned from the stream, reads and writes",
        uses=CODES,
        options=CODE_OPTIONS,
    ),
    "ae-mir": from_codes(
        "replay of the stored codes nearest to where, in the space of codes, the coming update interferes most",
        uses=CODES | CANDIDATES,
        options=CODE_OPTIONS | CODE_SEARCH_OPTIONS,
        candidates=CodeSearch().candidates,
    ),
}


# ------------------------------------------------------------------------------------------------------ resolving

OWN_SETTINGS: Final[Mapping[str, Any]] = {
    "capacity": 500, "exclude_current_task": False, **defaults(Replay, "updates", "budget", "batchnorm"),
    **defaults(MostInterfered, "candidates", "criterion"),
}  # fmt: skip
"""The settings of a stream of the user's own, where it has none itself."""
SPEC_FIELDS = frozenset(Spec.__dataclass_fields__) - {"method", "stream", "method_version", "stream_version"}


def find_method(name: str) -> Method:
    """Return a method, or say which there are."""
    return find(METHODS, "method", name)


def resolve(method: str, stream: str, *layers: Mapping[str, Any]) -> Spec:
    """Return the spec of a run: the stream's settings, the method's own, then the user's layers; later ones win.

    ``memory`` (samples per class) stands for ``capacity`` (samples in all). Fields that the method does not use are
    cleared; a layer that names one that does not exist, or an option of another method, is refused.
    """
    known = find_method(method)
    definition, settings = find(STREAMS, "stream", stream), stream_settings(stream)
    if definition.make is not None:
        settings["common"] = {**OWN_SETTINGS, **definition.settings}
        if not known.scores:
            settings["common"].pop("candidates")  # other methods pass them only on request
    values = merge(
        [
            {"options": known.options},
            settings["common"],
            settings["methods"].get(method, {}),
            *map(_with_capacity, layers),
        ]
    )
    values = _memory_as_capacity(values, settings["common"].get("classes", 10))
    unknown = values.keys() - SPEC_FIELDS - {"options"}
    if unknown:
        named = f"{', '.join(sorted(unknown))}{did_you_mean(min(unknown), SPEC_FIELDS)}"
        raise InvalidInput(f"a run has no setting {named}; there are {', '.join(sorted(SPEC_FIELDS))}")
    foreign = values["options"].keys() - known.options.keys()
    if foreign:
        there_are = f"it has {', '.join(known.options)}" if known.options else "it has none of its own"
        near = did_you_mean(min(foreign), known.options)
        raise InvalidInput(f"{method} has no option {', '.join(sorted(foreign))}{near}; {there_are}")
    values["options"] = {
        name: _checked_option(name, value, known.options[name]) for name, value in values["options"].items()
    }
    for name in COMMON - known.uses:
        values[name] = None
    if known.candidates is not None and values.get("candidates") is None:
        values["candidates"] = max(known.candidates, _replayed(values) or 0)
    _check_candidates(values)
    values.update(method_version=known.version, stream_version=definition.version)
    return Spec(method=method, stream=stream, **values)


def _check_candidates(values: Mapping[str, Any]) -> None:
    candidates, replayed = values.get("candidates"), _replayed(values)
    if isinstance(candidates, int) and replayed is not None and candidates < replayed:
        few = f"{candidates} candidates are fewer than the {replayed} samples to replay"
        raise InvalidInput(f"{few}; raise candidates or lower budget")


def _replayed(values: Mapping[str, Any]) -> int | None:
    """Return how many samples are retrieved; None if that is no number yet: the spec will say what is wrong."""
    budget, copies = values.get("budget"), values["options"].get("copies", 1)
    return budget // max(copies, 1) if isinstance(budget, int) and isinstance(copies, int) else None


def precision_of(spec: Spec) -> str:
    """Return the precision that a run is computed in: if nothing is scored there is none of scoring."""
    scores = spec.criterion is not None or spec.candidates is not None or "search_steps" in spec.options
    scores = scores or spec.method == "gem"  # whose gradients of past tasks are in that precision
    return "float32" if spec.precision == "bfloat16-scoring" and not scores else spec.precision


def preparation_key(spec: Spec) -> str | None:
    """Return a name for what runs share that prepare every task in the same way; None if there is nothing to share.

    Method, network, learning rate, what is replayed, the precision of scoring, and what passes through the autoencoder
    play no part.
    """
    method = find_method(spec.method)
    if method.not_preparing is None or spec.task_free:
        return None
    options = {name: value for name, value in spec.options.items() if name not in method.not_preparing}
    training = "float32" if spec.precision == "bfloat16-scoring" else spec.precision
    alike = replace(spec, method="any", network="any", lr=1.0, updates=None, budget=None, candidates=None, every=None)
    return replace(alike, options=options, precision=training).key


def _checked_option(name: str, value: Any, default: Plain) -> Any:
    """Return an option in the type of its default; which values are valid, the learner knows.

    3 and 3.0 are the same number, and make the same run.
    """
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise InvalidInput(f"{name} is {value!r}; it must be true or false")
    elif isinstance(default, int | float) or isinstance(value, float):
        most = MOST_OTHERWISE if isinstance(default, int) else LARGEST
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= most:
            raise InvalidInput(f"{name} is {value!r}; it must be a number, at most {most:g}")
        if name.endswith("_lr") and value <= 0:
            raise InvalidInput(f"{name} is {value!r}; a learning rate is a positive number")
        kind = type(default) if isinstance(default, int | float) else type(value)
        return kind(value) if kind(value) == value else value
    return value


def _with_capacity(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return a layer in which memory overrides capacity, or capacity memory."""
    identity = ("method", "stream", "method_version", "stream_version")
    layer = {name: value for name, value in layer.items() if name not in identity}
    if layer.get("memory") is not None and layer.get("capacity") is not None:
        raise InvalidInput("give memory (samples per class) or capacity (samples in all), not both")
    if layer.get("memory") is not None:
        layer["capacity"] = None
    elif layer.get("capacity") is not None:
        layer["memory"] = None
    return layer


def _memory_as_capacity(values: dict[str, Any], classes: int) -> dict[str, Any]:
    memory = values.pop("memory", None)
    values.pop("classes", None)
    if memory is not None:
        if isinstance(memory, bool) or not isinstance(memory, int) or memory < 1:
            raise InvalidInput(f"memory is {memory!r}; it must be a positive number of samples per class")
        values["capacity"] = memory * classes
    return values


def build(spec: Spec, problem: Problem) -> Learner:
    """Return the learner of a spec, for that problem."""
    method = find_method(spec.method)
    return method.build(replace(spec, options={**method.options, **spec.options}), problem)


def prepare_for(scaling: str) -> Callable[[Tree], Tree]:
    """Return how a stream's inputs are scaled."""
    return prepare_symmetric if scaling == "symmetric" else prepare_unit


def prepare_symmetric(x: Tree, dtype: torch.dtype = torch.float32) -> Tree:
    """Turn bytes into floats in [−1, 1], the scaling of the CIFAR-10 and Mini-ImageNet experiments: 2x − 1."""

    def leaf(values: Tensor) -> Tensor:
        return values.to(dtype).mul_(2 / 255).sub_(1) if values.dtype == torch.uint8 else values

    return prepare_unit(tree_map(leaf, x), dtype)
