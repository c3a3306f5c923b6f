"""The README, the pages, help texts and error messages have none of the phrases in phrases.txt."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
RECORDS = ("decisions", "log.md")  # what was written at the time, and stays
MEASURED = ("performance.md",)  # by `make bench`, which words them; made anew with the next measurement
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if not {*page.parts, page.name} & {*RECORDS, *MEASURED}),
]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def phrases() -> dict[str, re.Pattern[str]]:
    """Each phrase with its pattern."""
    lines = (ROOT / "tests" / "phrases.txt").read_text("utf-8").splitlines()
    found = [line.partition(" | ")[0].strip() for line in lines if line and not line.startswith("#")]
    words = {phrase: r"\s+".join(map(re.escape, phrase.split())).replace(r"\*", r"\w*") for phrase in found}
    return {phrase: re.compile(rf"(?<![\w-]){pattern}(?![\w-])", re.IGNORECASE) for phrase, pattern in words.items()}


def said(text: str) -> set[str]:
    """The phrases in a text."""
    return {phrase for phrase, pattern in PHRASES.items() if pattern.search(text)}


def shown(source: str) -> Iterator[tuple[int, str]]:
    """What a module shows to people, by line: texts in `raise`, in `help=`, and docstrings of commands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) or (isinstance(node, ast.keyword) and node.arg == "help"):
            for part in ast.walk(node):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.lineno, part.value
        elif isinstance(node, ast.FunctionDef) and any("command" in ast.dump(one) for one in node.decorator_list):
            yield node.lineno, ast.get_docstring(node) or ""


PHRASES = phrases()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_none_of_the_phrases(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert said(text) == set()


def test_help_and_errors_have_none_of_the_phrases() -> None:
    found = {
        f"{file.relative_to(ROOT)}:{line}": phrases
        for file in SOURCES
        for line, text in shown(file.read_text("utf-8"))
        if (phrases := said(text))
    }
    assert found == {}


def test_phrases_are_found() -> None:
    assert said("Any optimiser\nbut LBFGS goes on where it was.") == {"optimis*", "but LBFGS", "goes on where * was"}
    assert said("Any optimizer except LBFGS; it resumes where it was interrupted.") == set()
    message = 'def f():\n    raise ValueError(f"nothing is recalled of {x}")\n'
    assert [(line, said(text)) for line, text in shown(message) if said(text)] == [(2, {"recalled"})]
