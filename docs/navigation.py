"""Hooks of mkdocs: methods, decisions and unnamed pages go into the menu, the examples onto their page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FOLDERS = {"Methods": "methods", "API": "reference", "Decisions": "decisions"}
RECORDS = ("decisions/", "log.md")


def on_config(config: Any) -> Any:
    """Fill the menu; mkdocs calls this before it reads it.

    A group that is named in ``FOLDERS`` gets the pages of that folder, README.md first. A page that is in no group
    goes to the end of the group that mkdocs.yml names for its folder (``extra: others``).
    """
    docs = Path(config["docs_dir"])
    for title, folder in FOLDERS.items():
        _group(config["nav"], title).extend(_pages(docs, folder))
    known = set(_named(config["nav"]))
    for folder, title in config["extra"]["others"].items():
        _group(config["nav"], title).extend(page for page in _pages(docs, folder) if page not in known)
    return config


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Put the scripts of ``examples/`` onto their page; in the search, records come after what explains how to."""
    if page.file.src_uri.startswith(RECORDS):
        page.meta["search"] = {"boost": 0.2}
    if page.file.src_uri != "examples.md":
        return markdown
    scripts = sorted((Path(config["docs_dir"]).parent / "examples").glob("*.py"))
    shown = "\n\n".join(f"## {script.stem}\n\n```python\n{script.read_text('utf-8').rstrip()}\n```" for script in scripts)
    return markdown.replace("<!-- examples -->", shown)


def _group(menu: list[Any], title: str) -> list[Any]:
    """Return the entries of the group of that name, however deep."""
    found = [entries for entry in menu for entries in _groups(entry, title)]
    return found[0]


def _groups(entry: Any, title: str) -> list[list[Any]]:
    if not isinstance(entry, dict):
        return []
    inside = [entries for entries in entry.values() if isinstance(entries, list)]
    found = [entry[title]] if isinstance(entry.get(title), list) else []
    return found + [one for entries in inside for child in entries for one in _groups(child, title)]


def _named(entries: Any) -> list[str]:
    """Return the pages that the menu names."""
    if isinstance(entries, str):
        return [entries]
    children = entries.values() if isinstance(entries, dict) else entries
    return [page for child in children for page in _named(child)]


def _pages(docs: Path, folder: str) -> list[str]:
    """Return the pages of a folder, README.md first."""
    names = sorted(str(page.relative_to(docs)) for page in (docs / folder).glob("*.md"))
    return sorted(names, key=lambda name: not name.endswith("README.md"))
