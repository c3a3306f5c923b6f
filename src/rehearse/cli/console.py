"""Two consoles: results on standard output, everything else on standard error."""

import sys

from rich.console import Console

# A pipe or a file has no width of its own; tables keep theirs there.
output = Console(width=None if sys.stdout.isatty() else 120)
errors = Console(stderr=True, width=None if sys.stderr.isatty() else 120)
