"""An equal share for every class."""

from __future__ import annotations

import os
from array import array
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..checks import Form, count, each, fits, numbers
from ..errors import InvalidType
from .base import Memory
from .index import Slots


class ClassBalancedMemory(Memory):
    """An equal share for every class seen, and within a class a uniform sample of it.

    Let n_c be the samples seen of class c. Until the memory is full everything is kept. From then on there is a level
    q, falling as classes appear, such that

    - a class with n_c ≤ q is held whole,
    - every other class holds q or q + 1 samples, each of its n_c samples being held with the same probability.

    A sample of a class that is still held whole takes a random slot of the largest class; a class that was once the
    largest keeps a reservoir of its own (Vitter's algorithm R over its share). This is class-balanced reservoir
    sampling (Chrysakis and Moens, 2020), for batches of any size.

    A slot emptied by `forget` stays with its class, open until that class's own draw falls on it.
    """

    _policy = ("_share", "_seen_of")

    def __init__(self, capacity: int, *, path: str | os.PathLike[str] | None = None, seed: int = 0) -> None:
        """Start empty; see `Memory` for the arguments."""
        super().__init__(capacity, path=path, seed=seed)
        self._share: dict[int, array[int]] = {}  # class -> its slots, open ones included
        self._seen_of: dict[int, int] = {}

    def _check_policy(self, batch: Batch) -> None:
        y = batch.y
        if not isinstance(y, Tensor) or y.ndim != 1 or y.is_floating_point() or y.dtype == torch.bool:
            found = f"{y.dtype} of shape {tuple(y.shape)}" if isinstance(y, Tensor) else f"a {type(y).__name__}"
            raise InvalidType(f"a class-balanced memory needs one integer label per sample; these targets are {found}")

    def _place(self, batch: Batch) -> Slots:
        return np.array([self._slot_for(label) for label in batch.y.tolist()], np.int64)

    def _slot_for(self, label: int) -> int:
        own = self._share.setdefault(label, array("q"))
        self._changes.add(own.__delitem__, slice(len(own), None))
        self._seen_of[label] = seen = self._seen_of.get(label, 0) + 1
        filled = sum(map(len, self._share.values()))
        if filled < self.capacity:
            own.append(filled)
            return filled
        donor = max(self._share.values(), key=len)
        if len(own) < seen - 1 or len(own) == len(donor):  # it was, or it is, the largest: no longer held whole
            drawn = int(self._insertion.integers(0, seen))
            return own[drawn] if drawn < len(own) else -1
        place = int(self._insertion.integers(0, len(donor)))
        self._changes.add(donor.__setitem__, place, donor[place])
        self._changes.add(donor.__setitem__, slice(len(donor) - 1, None), donor[-1:])
        slot, donor[place] = donor[place], donor[-1]
        donor.pop()
        own.append(slot)
        return slot

    def _adopt_policy(self, other: Memory) -> None:
        known = other._seen_of if isinstance(other, ClassBalancedMemory) else {}
        share = other.seen / max(len(other), 1)  # of a class that it holds as many of as it has seen
        self._seen_of = {label: known.get(label, int(n * share)) for label, n in self._seen_of.items()}

    def _policy_state(self) -> dict[str, Any]:
        return {
            "classes": list(self._share),
            "sizes": [len(share) for share in self._share.values()],
            "seen": [self._seen_of[label] for label in self._share],
            "slots": torch.tensor([slot for share in self._share.values() for slot in share], dtype=torch.int64),
        }

    def _policy_form(self, seen: int) -> Form:
        def of_classes(state: dict[str, Any]) -> bool:
            classes, sizes, counts, slots = (state[name] for name in ("classes", "sizes", "seen", "slots"))
            shares = sum(sizes) == len(slots) <= min(seen, self.capacity) and sum(counts) <= seen  # adopted: fewer
            several = len(classes) == len(set(classes)) == len(sizes) == len(counts)
            whole = all(size <= n for size, n in zip(sizes, counts, strict=False))
            return several and shares and whole and len(slots.unique()) == len(slots)

        slots = numbers(torch.int64, 0, min(seen, self.capacity))
        form = {"classes": each(int), "sizes": each(count), "seen": each(count), "slots": slots}
        return lambda state: fits(state, form) and of_classes(state)

    def _load_policy_state(self, state: dict[str, Any]) -> None:
        parts = torch.split(state["slots"], state["sizes"])
        self._share = {label: array("q", part.tolist()) for label, part in zip(state["classes"], parts, strict=True)}
        self._seen_of = dict(zip(state["classes"], state["seen"], strict=True))
