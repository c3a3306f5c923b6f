"""Checkpoints that are damaged, and well-formed ones whose content somebody has altered.

Each is refused with a `CheckpointError` and changes nothing in the learner, or it is a state that the learner can go
on from: whatever it does then raises errors of ours alone.
"""

from __future__ import annotations

import copy
import hashlib
import io
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import rehearse
from rehearse.checkpoint import HEADER, MAGIC, VERSION
from rehearse.errors import CheckpointError, RehearseError
from sameness import differences, frozen

from .result import Result

LEARNERS = [
    "replay mi2 der adam 1 chain",
    "replay uniform ce momentum 1 norm published",
    "replay mi2, ring memory, batch 4",
    "replay mi2, balanced memory, batch 4",
    "replay mi2, balanced, not full memory, batch 4",
    "replay mi2, mapped memory, batch 4",
    "GEM momentum 1 chain",
    "ICaRL task adam 1 norm 3",
    "ICaRL memory sgd 1 chain 4",
    "GDumb adam norm 4",
    "GenerativeReplay mir adam 1",
    "GenerativeReplay gen sgd 1",
    "CodeReplay True True adam 1",
    "CodeReplay, bytes",
]


def signed(payload: bytes) -> bytes:
    """A file with a right checksum."""
    digest = hashlib.sha256(MAGIC + VERSION.to_bytes(4, "little") + payload).digest()
    return HEADER.pack(MAGIC, VERSION, digest) + payload


def packed(state: Any) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse tensors are announced as unfinished
        torch.save({"content": "learner", "state": state}, buffer)
    return signed(buffer.getvalue())


# ------------------------------------------------------------------------------------------------------ alterations


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all parts of a state."""
    yield path
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list | tuple) else ():
        yield from places(value[key], (*path, key))


def altered(state: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    """The state with another value at a place."""
    if not path:
        return change(state)
    key, *rest = path
    inner = altered(state[key], tuple(rest), change)
    if isinstance(state, dict):
        return {**state, key: inner}
    return type(state)([*state[:key], inner, *state[key + 1 :]])


def deep(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value, value]  # so many levels of one list are 2 to the power of them
    return value


ANYTHING: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: -1, lambda: 0, lambda: 7, lambda: 2**62, lambda: 2**70, lambda: -(2**63),
    lambda: 10**400, lambda: 1.5, lambda: float("nan"), lambda: float("inf"), lambda: -0.5, lambda: "", lambda: "text",
    lambda: "cpu", lambda: b"bytes", list, dict, tuple, lambda: [1], lambda: {"a": 1}, lambda: {0: {}},
    lambda: torch.tensor(3), lambda: torch.tensor(0.5), lambda: torch.zeros(0), lambda: torch.ones(3, 2),
    lambda: torch.arange(5), lambda: torch.zeros(1).expand(10**8), lambda: torch.zeros(1, 1).expand(10**8, 8),
    lambda: torch.zeros(2, 2).to_sparse(), lambda: torch.zeros(2, dtype=torch.complex64), lambda: torch.zeros(3).bool(),
    lambda: torch.zeros(4, device="meta"), lambda: torch.ones(2, requires_grad=True), lambda: deep(60),
    lambda: torch.float32, lambda: torch.Size([1]), lambda: torch.device("cpu"),
]  # fmt: skip


def of_tensor(value: Tensor, chance: random.Random) -> Tensor:
    """A tensor that is a little different."""
    changes: list[Callable[[], Tensor]] = [
        lambda: value[:-1] if value.ndim else value[None],
        lambda: value.flatten(),
        lambda: value[None],
        lambda: torch.cat([value, value]) if value.ndim else value,
        lambda: value[:1].expand_as(value) if value.ndim and len(value) else value,
        lambda: value.to(chance.choice([torch.float64, torch.int64, torch.int32, torch.uint8, torch.bfloat16])),
        lambda: value + 1,
        lambda: -value if value.dtype not in (torch.bool, torch.uint8) else ~value,
        lambda: value.flip(0) if value.ndim else value,
        lambda: torch.full_like(value, chance.choice([0, 1, 100])),
        lambda: torch.full_like(value, float("nan")) if value.is_floating_point() else value * 1000,
        lambda: value * 1e30 if value.is_floating_point() else torch.full_like(value, torch.iinfo(value.dtype).max)
        if value.dtype != torch.bool else value,
    ]  # fmt: skip
    return chance.choice(changes)()


def another(value: Any, chance: random.Random) -> Any:
    """Another value in the place of this one."""
    if chance.random() < 0.4:
        return chance.choice(ANYTHING)()
    if isinstance(value, Tensor):
        return of_tensor(value, chance)
    if isinstance(value, dict):
        keys = list(value)
        what = chance.choice(["less", "more", "other", "number"]) if keys else "more"
        if what == "more":
            return {**value, chance.choice(["new", 0, 999, True]): chance.choice(ANYTHING)()}
        gone = chance.choice(keys)
        rest = {key: part for key, part in value.items() if key != gone}
        return rest if what == "less" else {**rest, "other" if what == "other" else 10**6: value[gone]}
    if isinstance(value, list | tuple):
        changes = [value[:-1], value[::-1], value + value, value[1:], tuple(value), list(value)]
        return chance.choice(changes)
    if isinstance(value, bool) or value is None:
        return chance.choice([True, False, None])
    if isinstance(value, int | float):
        return chance.choice([value + 1, value - 1, -value, value * 1000, value * 1e9, float(value), 2**53 - 1])
    digits = "".join(chance.choice("0123456789") if one.isdigit() and chance.random() < 0.2 else one for one in value)
    return chance.choice([digits, value[:-1], value + "x", value.upper(), value.replace("0", "-1"), value * 2])


def damaged(content: bytes, chance: random.Random) -> bytes:
    """Flipped bits, a part cut out, the end missing, or two parts exchanged."""
    at, length = chance.randrange(len(content)), chance.choice([1, 8, 100, 5000])
    what = chance.choice(["flip", "flips", "cut", "truncate", "splice", "double"])
    if what in ("flip", "flips"):
        flipped = bytearray(content)
        for _ in range(1 if what == "flip" else 20):
            flipped[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        return bytes(flipped)
    if what == "cut":
        return content[:at] + content[at + length :]
    if what == "truncate":
        return content[:at]
    if what == "double":
        return content[: at + length] + content[at:]
    other = chance.randrange(len(content))
    return content[:at] + content[other : other + length] + content[at + length :]


# ------------------------------------------------------------------------------------------------------------ tries


class Target:
    """A learner that checkpoints are loaded into, and what a good one is."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        folder.mkdir()
        from small_learners import SETTINGS  # its path is that of the contract's tests

        self.case = SETTINGS[name](folder)
        self.learner = self.case.learner
        rehearse.save(self.learner, folder / "good")
        self.good = (folder / "good").read_bytes()
        self.state = frozen(self.learner.state_dict())
        self.places = list(places(self.state))[1:]

    def attempt(self, content: bytes, label: str) -> Iterator[str]:
        """What is wrong with how a file is treated."""
        path = self.folder / "hostile"
        path.write_bytes(content)
        try:
            rehearse.load(path, into=self.learner)
        except CheckpointError:
            changed = differences(self.learner.state_dict(), self.state)
            if changed:
                yield f"{label}: refused, and yet changed: {changed[:3]}"
        except Exception as problem:
            yield f"{label}: {type(problem).__name__}: {problem}"
        else:
            yield from self.used(label)
        try:
            rehearse.load(self.folder / "good", into=self.learner)
        except Exception as problem:
            yield f"{label}: the good file is not loaded after it: {type(problem).__name__}: {problem}"
            if self.learner.memory is not None:
                self.learner.memory.close()
            self.__init__(self.name, self.folder / "again")  # type: ignore[misc]

    def used(self, label: str) -> Iterator[str]:
        """What is wrong with a learner that has accepted a file."""
        learner, (_, x, y, task) = self.learner, self.case
        calls: dict[str, Callable[[], Any]] = {
            "state_dict": learner.state_dict,
            "predict": lambda: learner.predict(x),
            "observe": lambda: learner.observe(x, y, task),
            "diagnose": lambda: learner.diagnose(x, y, task),
            "observe again": lambda: learner.observe(x, y, task),
            "end_task": learner.end_task,
            "forget": lambda: learner.forget(slots=[0]),
            "summary": lambda: learner.memory.summary() if learner.memory is not None else None,
            "diagnostics": learner.diagnostics,
            "save": lambda: rehearse.save(learner, self.folder / "saved"),
        }
        if "mapped" in self.name:  # they would go on from here, where the good checkpoint could not be loaded any more
            calls = {name: calls[name] for name in ("predict", "summary", "diagnostics")}
        for name, call in calls.items():
            try:
                call()
            except RehearseError:
                continue
            except Exception as problem:
                yield f"{label}: accepted, then {name}: {type(problem).__name__}: {problem}"
                return


def run(tries: int | None, seed: int) -> Result:
    """Try so many checkpoints, half of them damaged and half of them altered; by default 10,000 of each."""
    chance, failures, count = random.Random(seed), list[str](), (tries or 20_000) // 2
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        targets = [Target(name, Path(folder) / str(number)) for number, name in enumerate(LEARNERS)]
        for number in range(count):
            target = targets[number % len(targets)]
            payload = target.good[HEADER.size :]
            # Without a right checksum nothing of it is read: half of them have one.
            content = damaged(target.good, chance) if chance.random() < 0.5 else signed(damaged(payload, chance))
            failures += target.attempt(content, f"damaged file {number} of {target.name}")
        for number in range(count):
            target = targets[number % len(targets)]
            state: Any = target.state
            where = [chance.choice(target.places) for _ in range(chance.choice([1, 1, 1, 2]))]
            for path in where:
                try:
                    state = altered(state, path, lambda value: another(copy.deepcopy(value), chance))
                except (KeyError, IndexError, TypeError, RuntimeError, AttributeError, OverflowError):
                    continue  # the first change has removed the place of the second, or this value cannot be altered so
            failures += target.attempt(packed(state), f"altered file {number} of {target.name}, {where}")
    return Result(2 * count, failures)
