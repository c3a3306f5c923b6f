"""How an object was made, as text."""

from __future__ import annotations

import inspect
from itertools import chain
from typing import Any


class Described:
    """Has a ``repr`` with the arguments of its class that differ from their defaults.

    An argument is shown if the object has an attribute of the same name.
    """

    def __repr__(self) -> str:
        """Return, for instance, ``Crop(padding=2)``."""
        own = inspect.signature(type(self)).parameters.values()
        return f"{type(self).__name__}({', '.join(chain.from_iterable(self._described(one) for one in own))})"

    def _described(self, argument: inspect.Parameter) -> list[str]:
        value = getattr(self, argument.name, argument.default)
        if argument.kind is argument.VAR_POSITIONAL:
            return list(map(short, value))
        if value is argument.empty or short(value) == short(argument.default):
            return []
        return [short(value) if argument.default is argument.empty else f"{argument.name}={short(value)}"]


def short(value: Any) -> str:
    """Return a value as text: its ``repr``, or its name or class where that is an address or many lines."""
    text = repr(value)
    if " at 0x" not in text and "\n" not in text:
        return text
    return str(getattr(value, "__qualname__", type(value).__name__))
