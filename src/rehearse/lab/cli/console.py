"""Two consoles: results on standard output, everything else on standard error."""

import os
import sys
from collections.abc import Iterable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table


class PrintableConsole(Console):
    """A console that shows control characters instead of obeying them: text may come from anybody's files."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments of what is printed; those that rich itself controls the terminal with stay."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control is None and not text.isprintable():
                text = "".join(c if c.isprintable() or c in "\n\xa0\u202f" else ascii(c)[1:-1] for c in text)
            yield segment if text == segment.text else segment._replace(text=text)


def _console(*, stderr: bool) -> PrintableConsole:
    """A pipe or a file has no width of its own: tables get 120 columns there, or $COLUMNS."""
    known = "COLUMNS" in os.environ or (sys.stderr if stderr else sys.stdout).isatty()
    return PrintableConsole(stderr=stderr, markup=False, emoji=False, highlight=False, width=None if known else 120)


output, errors = _console(stderr=False), _console(stderr=True)


def print_tables(tables: Iterable[Table]) -> None:
    """Print tables on standard output, an empty line after each."""
    for table in tables:
        output.print(table)
        output.print()


def say(sentence: str, style: str | None = None) -> None:
    """Print a sentence on standard error, where it is not taken for a result."""
    errors.print(sentence, style=style, soft_wrap=not errors.is_terminal)  # a terminal itself breaks within words


def warn_damaged(problem: Exception) -> None:
    """Report a file among results that is none; the others are shown."""
    say(f"skipped: {problem}", "yellow")
