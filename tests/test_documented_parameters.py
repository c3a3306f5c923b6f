"""Every parameter of what a person calls has a meaning: in its docstring, its class's, or one that these refer to."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rehearse

DOCS = Path(__file__).parent.parent / "docs"
REFERENCE = re.compile(r"^::: (rehearse\.\S+)", re.MULTILINE)
NOT_ASKED = {"self", "cls", "args", "kwargs"}
METHODS_TOO = (*rehearse.__all__, "RehearsalClassifier", "Predictor")  # whose methods people call, not only build


def documented(text: str, name: str, depth: int = 2) -> bool:
    """Whether a docstring gives a parameter a meaning, or refers to one that does: "see `…`", "those of `…`"."""
    own = rf"^\s*(\w+, )*\*{{0,2}}{name}(, \w+)* ?(\(.*\))?:|^\s*{name}$|`+{name}\b[^`]*`+"
    if re.search(own, text, re.MULTILINE):
        return True
    included = re.findall(r"(?:[Ss]ee|those of)\s+`([\w.]+)`", text) if depth else []
    return any(documented(text_of(found), name, depth - 1) for mentioned in included for found in resolved(mentioned))


def resolved(name: str) -> list[Any]:
    """What a docstring may mean by a name: the classes and functions that are called so, or a method of theirs."""
    head, _, method = name.partition(".")
    known = [value for place, value in REFERENCED.items() if place.rpartition(".")[2] == head]
    return [getattr(value, method) for value in known if hasattr(value, method)] if method else known


def text_of(found: Any) -> str:
    """The docstring of a function, or those of a class and its constructor."""
    parts = [found, found.__init__] if isinstance(found, type) else [found]
    return "\n".join(inspect.cleandoc(part.__doc__ or "") for part in parts)


PAGES = [page.read_text() for page in sorted(DOCS.rglob("*.md"))]
REFERENCED = {name: pkgutil.resolve_name(name) for page in PAGES for name in REFERENCE.findall(page)}


def callables() -> Iterator[tuple[str, Any, str]]:
    """Each function and constructor of the reference, and the methods of what people call, with the text to search.

    What the functions of a module share may be in the docstring of the module.
    """
    for place, found in REFERENCED.items():
        if inspect.ismodule(found):
            functions = {name: value for name, value in vars(found).items() if own(value, name, place)}
            yield from (
                (f"{place}.{name}", value, text_of(found) + text_of(value)) for name, value in functions.items()
            )
        elif isinstance(found, type):
            if issubclass(found, BaseException) or getattr(found, "_is_protocol", False):
                continue
            yield place, found.__init__, text_of(found)
            if found.__name__ in METHODS_TOO:
                for name, method in vars(found).items():
                    if inspect.isfunction(method) and not name.startswith("_"):
                        above = [getattr(base, name, None) for base in found.__mro__]
                        yield f"{place}.{name}", method, "\n".join(text_of(one) for one in above if one)
        else:
            yield place, found, text_of(found)


def own(found: Any, name: str, module: str) -> bool:
    """Whether it is a public function of that module."""
    return inspect.isfunction(found) and found.__module__ == module and not name.startswith("_")


@pytest.mark.parametrize(("function", "text"), [pytest.param(f, text, id=name) for name, f, text in callables()])
def test_each_parameter_has_a_meaning(function: Any, text: str) -> None:
    names = set(inspect.signature(function).parameters) - NOT_ASKED
    assert {name for name in names if not name.startswith("_") and not documented(text, name)} == set()


def test_a_parameter_without_a_meaning_is_found() -> None:
    text = "Do this to a batch.\n\nArgs:\n    batch: What arrived.\n    x, y: Its parts.\n\nReturns the ``loss`` of it."
    assert [name for name in ("batch", "x", "y", "loss", "task", "to") if not documented(text, name)] == ["task", "to"]
    assert documented("The same; see `Replay`.", "budget")
    assert not documented("The same; see `Replay`.", "candidates")
