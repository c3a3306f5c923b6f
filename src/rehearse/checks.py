"""Checks of arguments, and of what was read from a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from inspect import isabstract
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from .batch import Batch, checked_batch
from .errors import CheckpointError, InvalidInput, InvalidType

SHARDED = {"FullyShardedDataParallel", "FSDPModule"}  # by name: importing them takes a second
Form = Any
"""What a value must look like; see `check`."""


def check_model(model: Any, optimizer: Any, clip: Any, prepare: Any, name: str) -> None:
    """Refuse what a learner cannot be built from.

    Args:
        model: The module.
        optimizer: Of its parameters.
        clip: The largest norm of a gradient, or None.
        prepare: A function of the inputs, or None.
        name: What errors call the model.
    """
    whose = "" if name == "model" else f" of the {name}"
    if not isinstance(model, nn.Module):
        raise InvalidType(f"the {name} must be an nn.Module, this is {_what(model, '...')}")
    for part, module in model.named_modules():
        what = f"part {part!r} of the {name}" if part else f"the {name}"
        if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inside = ".".join(filter(None, [name, part, "module"]))
            raise InvalidType(f"{what} is wrapped in {type(module).__name__}; pass the module inside: {inside}")
        if SHARDED & {base.__name__ for base in type(module).__mro__}:
            raise InvalidType(f"{what} is sharded by FSDP; pass the plain module, with distributed=True if it fits")
        if isinstance(module, torch.jit.ScriptModule):
            raise InvalidType(f"{what} is compiled to TorchScript, which cannot be copied; pass the plain module")
    if not isinstance(optimizer, torch.optim.Optimizer):
        this = _what(optimizer, f"{name}.parameters(), ...")
        raise InvalidType(f"the optimizer{whose} must be one of torch.optim, this is {this}")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidInput("LBFGS evaluates the loss several times a step; a stream needs SGD, Adam or the like")
    own = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if not any(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"]):
        raise InvalidInput(f"the optimizer{whose} holds no trainable parameter; build it from {name}.parameters()")
    hooked = [part for part, parameter in model.named_parameters() if parameter._post_accumulate_grad_hooks]
    if hooked:
        never = f"a post_accumulate_grad_hook on {hooked[0]!r} of the {name} never runs: nothing accumulates in .grad"
        raise InvalidInput(f"{never}; use clip, or register_hook")
    if clip is not None and not (is_number(clip) and clip > 0):
        raise InvalidInput(f"clip is {clip!r}; it must be a positive norm, or None")
    if prepare is not None and not callable(prepare):
        raise InvalidType(f"prepare is {prepare!r}; it must be a function of the inputs, or None")


def _what(value: Any, arguments: str) -> str:
    """Return what a value is; of a class, how to make an object of it."""
    if isinstance(value, type):
        return f"the class {value.__name__}: construct it, {value.__name__}({arguments})"
    return type(value).__name__


def check_second(network: Any, name: str, needs: Iterable[str]) -> None:
    """Check that a second network beside the classifier has the methods that it needs."""
    lacking = [part for part in needs if not hasattr(network, part)]
    if lacking:
        what, protocol = f"the {name} is a {type(network).__name__}", f"rehearse.latent.{name.capitalize()}"
        raise InvalidType(f"{what}, which lacks {' and '.join(lacking)} (see {protocol})")


def is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_positive(**numbers: Any) -> None:
    _each(numbers, lambda number: is_whole(number) and number >= 1, "a positive whole number")


def check_limit(**numbers: Any) -> None:
    check_positive(**{name: number for name, number in numbers.items() if number is not None})


def check_not_negative(**numbers: Any) -> None:
    _each(numbers, lambda number: is_number(number) and 0 <= number < math.inf, "a number that is not negative")


def check_above_zero(**numbers: Any) -> None:
    _each(numbers, lambda number: is_number(number) and 0 < number < math.inf, "a positive number")


def check_fractions(**numbers: Any) -> None:
    _each(numbers, lambda number: is_number(number) and 0 <= number <= 1, "a number between 0 and 1")


def check_coefficients(**weights: Any) -> None:
    _each(weights, lambda weight: is_number(weight) and math.isfinite(weight), "a finite number")


def check_choice(known: Iterable[str], **values: Any) -> None:
    _each(values, lambda value: isinstance(value, str) and value in known, f"one of {', '.join(known)}")


def check_literals(of: object) -> None:
    """Refuse attributes that are none of the values that their class's annotations name."""
    for name, kind in get_type_hints(type(of)).items():
        if get_origin(kind) is Literal:
            check_choice(get_args(kind), **{name: getattr(of, name)})


def check_switches(**switches: Any) -> None:
    _each(switches, lambda switch: isinstance(switch, bool), "True or False", InvalidType)


def _each(values: dict[str, Any], ok: Callable[[Any], bool], what: str, error: type[Exception] = InvalidInput) -> None:
    for name, value in values.items():
        if not ok(value):
            raise error(f"{name} is {value!r}; it must be {what}")


def check_task(data: Any, task: Any) -> None:
    """Of a task that begins: all of its rows, and its number."""
    if not isinstance(data, Batch):
        raise InvalidType(f"a task begins with all of its rows, begin_task(Batch(x, y, 0), 0); this is {data!r:.80}")
    if not isinstance(data.y, Tensor) or data.y.ndim == 0:
        raise InvalidType(f"the targets of a task are a tensor, one for each sample; these are {data.y!r:.80}")
    if len(data):
        checked_batch(data.x, data.y)
    if not is_whole(task) or task < 0:
        raise InvalidInput(f"the task that begins is {task!r}; it must be a number, 0 or more")
    if isinstance(data.task, Integral) and data.task != task:
        raise InvalidInput(f"task {task} begins, and its rows are of task {data.task}")


def needs_two_samples(model: nn.Module) -> bool:
    """Return whether a lone sample cannot be trained on: it has no variance for an unfrozen BatchNorm1d."""
    return any(isinstance(m, nn.BatchNorm1d) and (m.training or not model.training) for m in model.modules())


def check_budget(budget: Any, model: nn.Module, joint: bool = False) -> None:
    """Check how many samples are replayed, in a pass of their own or (``joint``) in that of the incoming ones."""
    check_positive(budget=budget)
    if budget == 1 and not joint and needs_two_samples(model):
        lone = "a lone sample has no variance for BatchNorm1d"
        raise InvalidInput(f"budget is 1, and {lone}: replay at least 2 (or let them pass with batchnorm='joint')")


def check_candidates(candidates: int | None, count: int) -> None:
    """Check that so many samples can be chosen from this number of candidates; None is all that are stored."""
    if candidates is not None and candidates < count:
        fewer = f"{candidates} candidates are fewer than the {count} samples to retrieve"
        raise InvalidInput(f"{fewer}; raise candidates or lower budget")


def check_memory(memory: Any, kind: type[object]) -> None:
    """Check that a memory is of the kind that a method needs."""
    if not isinstance(memory, kind):
        such = f"{kind.__name__} such as ReservoirMemory(500)" if isabstract(kind) else kind.__name__
        raise InvalidType(f"the memory must be an instance of {such}, this is {memory!r}")


def check(value: Any, form: Form, where: str) -> None:
    """Refuse a value of another form.

    Args:
        value: Tensors and plain values.
        form: A tensor (of this dtype and shape), a dict (with these keys), a list or tuple (of this type and length), a
            type (exactly this one), None, or a function that says whether it accepts the value.
        where: What errors call the value.

    Raises:
        CheckpointError: If the value is of another form.
    """
    if isinstance(form, Tensor):
        right = isinstance(value, Tensor) and (value.dtype, value.shape) == (form.dtype, form.shape)
    elif isinstance(form, dict):
        right = type(value) is dict and value.keys() == form.keys()
    elif isinstance(form, list | tuple):
        right = type(value) is type(form) and len(value) == len(form)
    elif isinstance(form, type):
        right = type(value) is form
    else:
        right = form(value) if callable(form) else value is form
    if not right:
        if isinstance(form, dict) and type(value) is dict:
            names = ", ".join(map(repr, form.keys() ^ value.keys()))
            raise CheckpointError(f"{where} has entries missing or added ({names}): another version may have saved it")
        found = f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"{value!r:.60}"
        raise CheckpointError(f"{where} does not fit: {found}")
    for key in form if isinstance(form, dict) else range(len(form)) if isinstance(form, list | tuple) else ():
        check(value[key], form[key], f"{where}[{key!r}]")


def anything(value: Any) -> bool:
    """Accept every value."""
    return True


def count(value: Any) -> bool:
    """Accept whole numbers, 0 or more."""
    return type(value) is int and 0 <= value < 2**53


def optional(form: Form) -> Callable[[Any], bool]:
    """Accept None, or the form."""
    return lambda value: value is None or fits(value, form)


def each(form: Form) -> Callable[[Any], bool]:
    """Accept lists of any length of this form."""
    return lambda value: type(value) is list and all(fits(part, form) for part in value)


def numbers(dtype: torch.dtype, low: int, high: int) -> Callable[[Any], bool]:
    """Accept lists of numbers, as a tensor, from ``low`` to below ``high``."""

    def accept(value: Any) -> bool:
        right = isinstance(value, Tensor) and value.dtype == dtype and value.ndim == 1
        return right and bool(((value >= low) & (value < high)).all())

    return accept


def alike(tensors: Mapping[str, Tensor]) -> dict[str, Form]:
    """Accept tensors with these names, dtypes and shapes; their length may be that of before a head has grown."""

    def accept(own: Tensor, value: Any) -> bool:
        right = isinstance(value, Tensor) and value.dtype == own.dtype
        return right and value.ndim == own.ndim and value.shape[1:] == own.shape[1:]

    return {name: partial(accept, own) for name, own in tensors.items()}


def fits(value: Any, form: Form) -> bool:
    """Return whether a value is of a form."""
    try:
        check(value, form, "")
    except CheckpointError:
        return False
    return True
