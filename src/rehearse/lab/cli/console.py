"""Two consoles: results on standard output, everything else on standard error."""

import sys

from rich.console import Console

# A pipe or a file has no width of its own; tables keep theirs there.
output = Console(width=None if sys.stdout.isatty() else 120)
errors = Console(stderr=True, width=None if sys.stderr.isatty() else 120)


def tell_damaged(problem: Exception) -> None:
    """A file among results that is none: it is left out, and the rest is shown."""
    errors.print(f"left out: {problem}", style="yellow", soft_wrap=True, highlight=False, markup=False)
