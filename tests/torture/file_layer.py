"""The power fails, or the disk refuses, at every call that writes: a restart finds the last completed state.

Each scenario is performed once, and at every call the images that a restart may find are taken (see `lying_disk`); no
process has to die for that. Each image is then loaded and compared with the states that were complete at that moment.
The scenario is also performed again for every call and every kind of fault: what fails must raise an error of ours and
change nothing, and succeed when it is repeated.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor, nn

import rehearse
from rehearse import Replay, ReservoirMemory, RingMemory, Uniform
from rehearse.errors import CheckpointError, RehearseError
from rehearse.lab.campaign.store import Store
from rehearse.lab.campaign.work import run_spec
from rehearse.lab.experiment import Settings, with_precision
from rehearse.lab.methods import resolve
from rehearse.memory.mapped import file
from rehearse.network.states import network_state

from .dividing import divided
from .lying_disk import FAULTS, Image, LyingDisk, restore
from .result import Result

SAMPLES, WIDTH, CAPACITY = 4, 600, 10  # one sample is larger than a sector


class Picture(NamedTuple):
    """What a learner is: everything but the samples as a digest, and the samples by id."""

    rest: str
    samples: dict[int, tuple[int, bytes]]

    def without(self, ids: frozenset[int]) -> Picture:
        return Picture(self.rest, {id: sample for id, sample in self.samples.items() if id not in ids})


def picture_of(learner: Replay) -> Picture:
    memory = learner.memory
    rest = [learner.progress, memory.seen, memory._insertion.bit_generator.state, memory._sampling.bit_generator.state]
    tensors = [_numbers(network_state(learner.network)), _numbers(learner.random_state())]
    held = memory.all() if len(memory) else None
    samples = {} if held is None else {
        int(held.columns["id"][i]): (int(held.slots[i]), held.x[i].numpy().tobytes()) for i in range(len(held))
    }  # fmt: skip
    return Picture(hashlib.sha256(repr((rest, tensors)).encode()).hexdigest(), samples)


def _numbers(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: _numbers(value) for key, value in state.items()}
    return state.numpy().tobytes() if isinstance(state, Tensor) else repr(state)


def batch(number: int) -> tuple[Tensor, Tensor, list[int]]:
    """Samples whose bytes are found nowhere else."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randint(0, 256, (SAMPLES, WIDTH), generator=generator, dtype=torch.uint8)
    return x, torch.arange(SAMPLES) % 4, ids_of(number)


def ids_of(number: int) -> list[int]:
    return list(range(SAMPLES * number, SAMPLES * (number + 1)))


def traces(ids: frozenset[int], contents: bytes) -> list[int]:
    """The ids of samples of which some part is found in the bytes."""
    found = []
    for id in ids:
        sample = batch(id // SAMPLES)[0][id % SAMPLES].numpy().tobytes()
        if any(sample[start : start + 12] in contents for start in range(0, WIDTH, 84)):
            found.append(id)
    return found


class _Small(Replay):
    def random_state(self) -> dict[str, Tensor]:
        return self.network.random.get()


def learner(folder: Path, kind: str) -> _Small:
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, 4)
    policy, path = RingMemory if "ring" in kind else ReservoirMemory, folder / "samples" if "mapped" in kind else None
    memory = policy(CAPACITY, path=path, seed=3)
    return _Small(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), memory, Uniform(), budget=3)


Attempt = Callable[[], Iterator[str]]
"""Returns what was wrong."""


class Found(NamedTuple):
    """An image, and what a restart from it may find."""

    label: str
    image: Image
    allowed: list[Picture | None]
    gone: frozenset[int]  # forgotten: nowhere
    doubtful: frozenset[int]  # being forgotten: there or not
    observed: frozenset[int]


@dataclass
class World:
    """A learner on a lying disk, and what must be true of it."""

    folder: Path
    kind: str
    chance: random.Random
    disk: LyingDisk
    take_images: bool
    label: str = ""
    allowed: list[Picture | None] = field(default_factory=lambda: [None])
    gone: frozenset[int] = frozenset()
    doubtful: frozenset[int] = frozenset()
    observed: frozenset[int] = frozenset()
    found: list[Found] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.learner = learner(self.folder, self.kind)
        if self.take_images:
            self.disk.before_call = self.take

    def take(self) -> None:
        label = f"{self.kind}, call {self.disk.calls} ({self.label})"
        for image in self.disk.images(self.chance):
            now = Found(label, image, list(self.allowed), self.gone, self.doubtful, self.observed)
            if not any(now[1:] == earlier[1:] for earlier in self.found[-4:]):
                self.found.append(now)

    def perform(self, label: str, call: Callable[[], object]) -> None:
        """Make a call; where the disk refuses, the learner is as before, and the second time it succeeds."""
        self.label, before = label, picture_of(self.learner)
        try:
            call()
        except RehearseError:
            self.disk.repair()
            with contextlib.suppress(CheckpointError if label == "load" else ()):  # until it is loaded again
                if picture_of(self.learner).without(self.doubtful) != before.without(self.doubtful):
                    self.failures.append(f"{self.kind}: a refused {label} has changed the learner")
            call()
        self.disk.repair()

    def observe(self, number: int) -> None:
        self.observed |= frozenset(ids_of(number))
        x, y, ids = batch(number)
        self.perform("observe", lambda: self.learner.observe(x, y, id=ids))

    def save(self) -> None:
        self.allowed.append(picture_of(self.learner))
        self.perform("save", lambda: rehearse.save(self.learner, self.folder / "checkpoint"))
        self.allowed = self.allowed[-1:]

    def forget(self, *ids: int, by: str = "ids") -> None:
        self.doubtful = frozenset(ids)
        if by == "ids":
            self.perform("forget", lambda: self.learner.forget(ids=list(ids)))
        else:
            held = picture_of(self.learner).samples
            slots = [held[id][0] for id in ids if id in held]
            self.doubtful &= held.keys()
            self.perform("forget", lambda: self.learner.forget(slots=slots))
        if "mapped" in self.kind:  # checkpoints of a memory in RAM still hold them
            self.gone |= self.doubtful
        self.doubtful = frozenset()

    def load(self, fresh: bool) -> None:
        if fresh:
            self.learner.memory.close()
            self.learner = learner(self.folder, self.kind)
        self.perform("load", lambda: rehearse.load(self.folder / "checkpoint", into=self.learner))
        self.compare(picture_of(self.learner))

    def compare(self, found: Picture) -> None:
        expected = self.allowed[-1]
        if expected is None or found != expected.without(self.gone):
            self.failures.append(f"{self.kind}: {self.label} restored another state than the last that was saved")

    def end(self) -> None:
        self.label = "end"
        self.take()
        self.learner.memory.close()


def scenario(world: World) -> None:
    """Everything that writes, in an order in which each meets what the others have left."""
    for number in range(4):
        world.observe(number)
    world.save()
    for number in range(4, 7):
        world.observe(number)
    world.forget(*ids_of(1), *ids_of(5), 24)  # in the journal or gone, in the memory, in RAM
    world.observe(7)
    world.learner.state_dict()  # a checkpoint that is never written
    world.observe(8)
    world.forget(*ids_of(2), *ids_of(3))
    world.load(fresh=False)
    world.observe(8)
    world.save()
    world.forget(*sorted(picture_of(world.learner).samples)[:2], by="slots")  # in the checkpoint
    world.observe(9)
    world.forget(*ids_of(9), by="slots")
    world.load(fresh=True)
    for number in range(10, 13):
        world.observe(number)
    world.forget(*ids_of(8), *ids_of(11))
    world.save()
    world.save()
    for number in range(13, 16):
        world.observe(number)
    world.save()
    world.forget(*range(10 * SAMPLES, 14 * SAMPLES))  # some were in the journal that was just removed
    world.end()


KINDS = ("mapped ring", "mapped ring, written at once", "mapped reservoir", "RAM ring")
AT_ONCE = 1000  # bytes that may wait in RAM, of that kind, until the file is written without a checkpoint


def performed(kind: str, chance: random.Random, fault: tuple[int, str] | None = None) -> World:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        disk = LyingDisk(root, fault=fault)
        waiting = AT_ONCE if "at once" in kind else file.RESIDENT
        with mock.patch("rehearse.files.os", disk), mock.patch.object(file, "RESIDENT", waiting):
            world = World(root, kind, chance, disk, take_images=fault is None)
            try:
                scenario(world)
            except Exception as problem:
                world.failures.append(f"{kind}, {world.label}: {type(problem).__name__}: {problem}")
            finally:
                world.learner.memory.close()
    return world


def restarted(found: Found, kind: str, goes_on: bool) -> Iterator[str]:
    """What is wrong with a restart from an image."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        restore(found.image, folder)
        left = traces(found.gone, b"|".join(content for content in found.image.values() if content is not None))
        if left:
            yield f"the bytes of deleted samples {left} are on the disk"
        one = learner(folder, kind)
        try:
            if (folder / "checkpoint").exists():
                rehearse.load(folder / "checkpoint", into=one)
                now = picture_of(one).without(found.doubtful)
                possible = [a and a.without(found.gone | found.doubtful) for a in found.allowed]
                if now not in possible:
                    yield f"another state than the last completed one: {sorted(now.samples)}"
                lost = found.observed - picture_of(one).samples.keys()
                if "mapped" in kind and (left := traces(lost, (folder / "samples").read_bytes())):
                    yield f"samples {left} are in the file and no id finds them"
            elif None not in found.allowed:
                yield "the checkpoint is gone"
            if goes_on:
                x, y, ids = batch(100)
                one.observe(x, y, id=ids)
                one.forget(ids=ids[:2])
                rehearse.save(one, folder / "checkpoint")
                before = picture_of(one)
                one.memory.close()
                one = learner(folder, kind)
                rehearse.load(folder / "checkpoint", into=one)
                if picture_of(one) != before:
                    yield "what was saved after the restart is not what is loaded"
        except Exception as problem:
            yield f"{type(problem).__name__}: {problem}"
        finally:
            one.memory.close()


SPEC: dict[str, Any] = {"samples_per_task": 20, "seed": 3}
COUNTED = ("spec", "metrics", "matrices", "test_sizes")  # of a result; the rest is time


def campaign(folder: Path) -> dict[str, Any]:
    """One small run of the laboratory, from its last checkpoint if there is one, to its result in the store."""
    spec, store = with_precision(resolve("er", "split-mnist-5k", SPEC)), Store(folder / "out")
    store.check_writable()
    run_spec(spec, store, Settings(checkpoint_steps=3))
    result = store.get(spec) or {}
    return {name: result[name] for name in COUNTED}


def uninterrupted(chance: random.Random) -> tuple[dict[str, Any], list[Image], int]:
    """The result of a campaign, what a restart may find at every call, and the number of calls."""
    found: list[Image] = []
    with tempfile.TemporaryDirectory() as folder:
        disk = LyingDisk(Path(folder).resolve())
        disk.before_call = lambda: found.extend(image for image in disk.images(chance) if image not in found[-5:])
        with mock.patch("rehearse.files.os", disk):
            return campaign(disk.root), found, disk.calls


def resumed(image: Image, expected: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a campaign that goes on from an image."""
    with tempfile.TemporaryDirectory() as name:
        restore(image, Path(name))
        yield from ended(Path(name), expected)


def refused(fault: tuple[int, str], expected: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a campaign of which a call fails, and that is then repeated."""
    with tempfile.TemporaryDirectory() as name:
        disk = LyingDisk(Path(name).resolve(), fault=fault)
        with mock.patch("rehearse.files.os", disk):
            try:
                if campaign(disk.root) != expected:
                    yield "another result than that of an uninterrupted run"
            except RehearseError:
                disk.repair()
            except Exception as problem:
                yield f"{type(problem).__name__}: {problem}"
        yield from ended(disk.root, expected)


def ended(folder: Path, expected: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the end of a campaign that goes on from what is there."""
    try:
        if campaign(folder) != expected:
            yield "another result than that of an uninterrupted run"
        if list(folder.glob("out/*/checkpoint.refused")):
            yield "the checkpoint was refused"
    except Exception as problem:
        yield f"{type(problem).__name__}: {problem}"


def faulty(kind: str, fault: tuple[int, str], seed: int) -> Iterator[str]:
    """What is wrong with a scenario of which a call fails, and with a restart after its end."""
    world = performed(kind, random.Random(seed), fault)
    yield from world.failures
    for found in world.found:
        yield from (f"restart: {wrong}" for wrong in restarted(found, kind, False))


def run(tries: int, seed: int) -> Result:
    """Stop the scenarios at every call, and try so many faults of them, and stops and faults of a campaign.

    Of each of these three kinds all are tried, where there are no more than a third of the tries.
    """
    chance = random.Random(seed)
    worlds = {kind: performed(kind, chance) for kind in KINDS}
    expected, images, calls = uninterrupted(chance)
    stops = [(found, kind) for kind, world in worlds.items() for found in world.found]
    attempts: list[tuple[str, Attempt]] = [
        (found.label, partial(restarted, found, kind, chance.random() < 0.3)) for found, kind in stops
    ]
    groups: list[list[tuple[str, Attempt]]] = [
        [
            (f"{what} at call {at + 1}", partial(faulty, kind, (at + 1, what), seed))
            for kind, world in worlds.items() for at in range(world.disk.calls) for what in FAULTS
        ],
        [(f"campaign, image {number}", partial(resumed, image, expected)) for number, image in enumerate(images)],
        [
            (f"campaign, {what} at call {at + 1}", partial(refused, (at + 1, what), expected))
            for at in range(calls) for what in FAULTS
        ],
    ]  # fmt: skip
    attempts += [one for group, share in divided(tries, groups) for one in chance.sample(group, min(len(group), share))]
    failures = [wrong for world in worlds.values() for wrong in world.failures]
    failures += [f"{label}: {wrong}" for label, attempt in attempts for wrong in attempt()]
    return Result(len(attempts), failures)
