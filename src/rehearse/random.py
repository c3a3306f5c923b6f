"""Random numbers: independent generators from one seed, and torch's random state as one learner sees it."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from typing import Final

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
        outside = {} if self._outside else torch_states()
        for device in outside:
            if device not in self._own:
                self._own[device] = torch.Generator(device).manual_seed(self._cuda_seed).get_state()
            _SETTERS[device[:4]](self._own[device], device)
        self._outside.append(outside)
        return self

    def __exit__(self, *exception: object) -> None:
        """Draw from torch's global state again."""
        outside = self._outside.pop()
        if outside:
            self._own = self._own | torch_states()
            for device, state in outside.items():
                _SETTERS[device[:4]](state, device)

    def snapshot(self) -> Restore:
        """Return a function that restores this state and torch's."""
        own, outside, torchs = dict(self._own), list(self._outside), torch_states()

        def restore() -> None:
            self._own, self._outside = own, list(outside)
            for device, state in torchs.items():
                _SETTERS[device[:4]](state, device)

        return restore

    def get(self) -> dict[str, Tensor]:
        """Return the state, by device."""
        return dict(self._own)

    def set(self, state: dict[str, Tensor]) -> None:
        """Continue from what `get` returned."""
        own = {device: values.cpu().to(torch.uint8) for device, values in state.items()}
        torch.Generator().set_state(own["cpu"])  # raises if it is not a state
        self._own = own


@contextlib.contextmanager
def borrowed(random: RandomState) -> Iterator[None]:
    """Draw what comes next, and leave all random state as it was."""
    with restoring(random.snapshot()), random:
        yield


_SETTERS: Final[dict[str, Callable[[Tensor, str], None]]] = {
    "cpu": lambda state, _: torch.set_rng_state(state),
    "cuda": torch.cuda.set_rng_state,
}


def torch_states() -> dict[str, Tensor]:
    """Return torch's global random states, by device."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states |= {f"cuda:{n}": torch.cuda.get_rng_state(n) for n in range(torch.cuda.device_count())}
    return states
