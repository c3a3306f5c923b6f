"""Random numbers: independent generators from one seed, and torch's random state as one learner sees it."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from .errors import InvalidInput
from .undo import Restore, restoring


def seed_sequence(seed: int, name: str) -> np.random.SeedSequence:
    """Return the seed of the generator called ``name``: generators of one seed never share a draw.

    Raises:
        InvalidInput: If ``seed`` is not a whole number of at least 0.
    """
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InvalidInput(f"the seed is {seed!r}; it must be a whole number of at least 0")
    return np.random.SeedSequence([seed, zlib.crc32(name.encode())])


def numpy_generator(seed: int, name: str) -> np.random.Generator:
    """Return a new numpy generator."""
    return np.random.Generator(np.random.PCG64(seed_sequence(seed, name)))


def torch_generator(seed: int, name: str) -> torch.Generator:
    """Return a new torch generator."""
    return torch.Generator().manual_seed(int(seed_sequence(seed, name).generate_state(1, np.uint64)[0]) >> 1)


class RandomState:
    """Torch's random numbers as one learner sees them.

    Inside ``with state:`` dropout and other layers draw from this state; outside, torch's global state is what it was.
    The block may be entered again inside itself: the draws then simply continue.
    """

    def __init__(self, seed: int, name: str = "torch") -> None:
        """Start the generator called ``name``; generators of one seed and different names share no draw."""
        generator = torch_generator(seed, name)
        self._own = {"cpu": generator.get_state()}
        self._cuda_seed = generator.initial_seed()
        self._outside: list[dict[str, Tensor]] = []

    def __enter__(self) -> RandomState:
        """Draw from this state."""
        generators = {} if self._outside else torch_generators()
        outside = {device: generator.get_state() for device, generator in generators.items()}
        for device, generator in generators.items():
            if device not in self._own:
                self._own[device] = torch.Generator(device).manual_seed(self._cuda_seed).get_state()
            generator.set_state(self._own[device])
        self._outside.append(outside)
        return self

    def __exit__(self, *exception: object) -> None:
        """Draw from torch's global state again."""
        outside, generators = self._outside.pop(), torch_generators()
        if outside:
            self._own = self._own | {device: generator.get_state() for device, generator in generators.items()}
            for device, state in outside.items():
                generators[device].set_state(state)

    def snapshot(self) -> Restore:
        """Return a function that restores this state and torch's."""
        own, outside = dict(self._own), list(self._outside)
        states = {generator: generator.get_state() for generator in torch_generators().values()}

        def restore() -> None:
            self._own, self._outside = own, list(outside)
            for generator, state in states.items():
                generator.set_state(state)

        return restore

    def get(self) -> dict[str, Tensor]:
        """Return the state, by device."""
        return dict(self._own)

    def set(self, state: dict[str, Tensor]) -> None:
        """Continue from what `get` returned."""
        own = {device: values.cpu() for device, values in state.items()}
        torch.Generator().set_state(own["cpu"])  # raises if it is not a state
        self._own = own


@contextlib.contextmanager
def borrowed(random: RandomState) -> Iterator[None]:
    """Draw what comes next, and leave all random state as it was."""
    with restoring(random.snapshot()), random:
        yield


def torch_generators() -> dict[str, torch.Generator]:
    """Return torch's global generators, by device."""
    cuda = torch.cuda.default_generators if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    return {"cpu": torch.default_generator, **{f"cuda:{n}": generator for n, generator in enumerate(cuda)}}
