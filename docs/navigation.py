"""A hook of mkdocs that adds pages to the menu: methods, results and decisions, as far as they exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

RESULTS = {
    "Reproduction": "reproduction.md",
    "What makes it work": "what-makes-it-work.md",
    "Scaling": "scaling.md",
    "Reliability": "reliability.md",
    "Performance": "performance.md",
    "Performance of generative replay": "performance-generative.md",
    "Performance of replay from codes": "performance-hybrid.md",
}
FOLDERS = {"Methods": "methods", "Decisions": "decisions"}


def on_config(config: Any) -> Any:
    """Insert the pages before the reference; mkdocs calls this before it reads the menu."""
    docs = Path(config["docs_dir"])
    results = [{title: page} for title, page in RESULTS.items() if (docs / page).exists()]
    folders = {title: _pages(docs, folder) for title, folder in FOLDERS.items()}
    log = [{"Measurements": "log.md"}] if (docs / "log.md").exists() else []
    added = {"Methods": folders["Methods"], "Results": results + log, "Decisions": folders["Decisions"]}
    menu = list(config["nav"])
    place = next(number for number, entry in enumerate(menu) if "Reference" in entry)
    menu[place:place] = [{title: pages} for title, pages in added.items() if pages]
    config["nav"] = menu
    return config


def _pages(docs: Path, folder: str) -> list[str]:
    """Return the pages of a folder, README.md first."""
    names = sorted(str(page.relative_to(docs)) for page in (docs / folder).glob("*.md"))
    return sorted(names, key=lambda name: not name.endswith("README.md"))
