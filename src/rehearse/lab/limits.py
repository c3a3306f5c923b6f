"""What a file from a stranger may hold, and how large what it asks for may be."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ..errors import DataError, InvalidInput

JSON_BYTES: Final = 32_000_000  # a result of 600 tasks; 3 bytes of JSON become up to 64 in memory
TOML_BYTES: Final = 20_000  # one dotted key of so many takes its parser a second, of twice as many four
DEPTH: Final = 20
TEXT: Final = 10_000
LARGEST: Final = 1e100  # whose square is still a number
PARAMETERS: Final = 100_000_000  # of a network: 400 MB
MODULE: Final = 1_000  # so many parameters take as much memory as a module without any


def read_limited(path: Path, most: int) -> bytes:
    """Return the content of a file, which may have ``most`` bytes; a pipe, which could block for ever, is refused."""
    if path.exists() and not path.is_file():
        raise DataError(f"{path} is no regular file")
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise DataError(f"{path} holds more than {most:,} bytes, the most that is read")
    return content


def read_plain(path: Path) -> Any:
    """Return the plain values in a JSON or TOML file; raises ValueError or OSError with what is wrong with it."""
    parse, most = (json.loads, JSON_BYTES) if path.suffix == ".json" else (tomllib.loads, TOML_BYTES)
    try:
        value = parse(read_limited(path, most).decode())
    except RecursionError:
        raise DataError("it is nested too deeply") from None
    check_plain(value)
    return value


def check_plain(value: Any, depth: int = 0) -> None:
    """Refuse what nothing of ours writes, and what would do harm where it is printed or computed with."""
    if isinstance(value, dict | list):
        if depth == DEPTH:
            raise DataError("it is nested too deeply")
        for part in [*value, *value.values()] if isinstance(value, dict) else value:
            check_plain(part, depth + 1)
    elif isinstance(value, str):
        if not value.isprintable() or len(value) > TEXT:
            raise DataError(f"it holds text that is too long, or cannot be printed: {value[:80]!a}")
    elif isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise DataError(f"it holds a number that is not finite, or beyond {LARGEST:g}")


@contextmanager
def enough_memory() -> Iterator[None]:
    """Say in a sentence that there is not enough memory for what a spec asks for."""
    try:
        yield
    except (MemoryError, RuntimeError) as problem:
        if isinstance(problem, RuntimeError) and not re.search("allocate|out of memory|Storage size", str(problem)):
            raise
        what = "this run needs more memory than there is; make its memory, networks or batches smaller"
        raise InvalidInput(f"{what} ({problem})") from problem


@contextmanager
def few_parameters() -> Iterator[None]:
    """Refuse a network with too many parameters while it is built: nothing has been written to them yet."""
    left = PARAMETERS

    def count(module: nn.Module, _: str, parameter: nn.Parameter) -> None:
        nonlocal left
        left -= max(parameter.numel(), MODULE)
        if left < 0:
            last = f"the last of them in a {type(module).__name__}"
            raise InvalidInput(f"a network has more than {PARAMETERS:,} parameters, {last}; make it smaller")

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()
