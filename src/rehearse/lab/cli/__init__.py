"""The command line: parses, calls, prints; no logic. `main` is importable without the extra ``lab``."""

from __future__ import annotations

import sys

NEEDED = ("typer", "rich")  # what the commands import at the top; all else is named where it is missing


def main() -> None:
    """Run the command line; without the extra ``lab`` print one sentence and exit with status 1."""
    try:
        from .app import call
    except ModuleNotFoundError as problem:
        if problem.name is None or problem.name.partition(".")[0] not in NEEDED:
            raise
        print(
            f"rehearse: the command line needs {problem.name.partition('.')[0]}; it comes with the extra: "
            "rehearse-torch[lab]",
            file=sys.stderr,
        )
        sys.exit(1)
    call()
