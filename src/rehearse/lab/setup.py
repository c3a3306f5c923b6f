"""What a run starts from: the stream, the problem and the precision of its spec."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cache

import torch

from ..errors import InvalidInput
from ..learners import Learner
from ..precision import resolve_precision, supports_bfloat16
from .extensions import find
from .limits import enough_memory
from .methods import Problem, build, find_method, precision_of, prepare_for
from .networks import make_network
from .spec import Spec
from .streams import STREAMS, Stream, make_stream
from .streams.base import PassingStream
from .streams.datasets.fetch import find_data


def spec_stream(spec: Spec, data_dir: str | None = None) -> Stream:
    """Return the stream of a spec, shuffled for the methods that are upper bounds."""
    as_named = ("seed", "split_seed", "samples_per_task", "batch_size", "class_order")
    settings = {name: getattr(spec, name) for name in as_named}
    stream = make_stream(spec.stream, n_tasks=spec.tasks, data_dir=data_dir, **settings)
    stream = stream if spec.step_cost is None else PassingStream(stream, spec.step_cost)
    epochs = find_method(spec.method).iid_epochs
    return stream.iid(epochs) if epochs else stream


@enough_memory()
def spec_learner(spec: Spec, stream: Stream, device: str = "cpu") -> Learner:
    """Return the learner of a spec, or say why there is none."""
    if stream.n_classes is None or stream.input_shape is None:
        raise InvalidInput(f"{stream.name} does not say how many classes or what inputs it has")
    classes, shape = stream.n_classes, stream.input_shape
    check_device(device)
    problem = Problem(
        classes=classes,
        tasks=stream.n_tasks,
        input_shape=shape,
        prepare=prepare_for(stream.scaling),
        network=lambda: make_network(spec.network, classes=classes, input_shape=shape),
        device=torch.device(device),
    )
    learner = build(spec, problem)
    if spec.task_free and learner.task_aware:
        raise InvalidInput(f"{spec.method} needs tasks; it cannot run task-free")
    return learner


def check(specs: Sequence[Spec], data_dir: str | None = None, device: str = "cpu") -> None:
    """Refuse runs on one stream that cannot be built, before any of them is started."""
    stream = spec_stream(specs[0], data_dir)
    for spec in specs:
        spec_learner(with_precision(spec, device), stream, device)


def check_data(specs: Iterable[Spec], data_dir: str | None = None) -> None:
    """Refuse runs on streams whose data is not found, without loading it."""
    for stream in dict.fromkeys(spec.stream for spec in specs):
        dataset = find(STREAMS, "stream", stream).dataset
        if dataset:
            find_data(dataset, data_dir)


def check_device(device: str) -> None:
    """Refuse a device that is not there."""
    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise InvalidInput(f"there is no device {device!r}; use cpu, or cuda if there is a GPU") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("torch finds no GPU here; use --device cpu")


def with_precision(spec: Spec, device: str = "cpu") -> Spec:
    """Return the spec with ``auto`` replaced by what this processor resolves it to."""
    check_device(device)
    searches = "search_steps" in spec.options and spec.network == "gated"  # the paper's generative runs
    precision = _resolved_precision(spec.network, spec.precision, device, searches)
    resolved = dataclasses.replace(spec, precision=precision)
    return dataclasses.replace(resolved, precision=precision_of(resolved)) if spec.precision == "auto" else resolved


@cache
def _resolved_precision(network: str, precision: str, device: str, searches: bool) -> str:
    if precision == "auto" and searches and supports_bfloat16(torch.device(device)):
        return "bfloat16-scoring"  # measured for that network, so this is no rule of the library
    model = make_network(network, classes=10, input_shape=(3, 32, 32))
    return resolve_precision(precision, model, torch.device(device)).name
