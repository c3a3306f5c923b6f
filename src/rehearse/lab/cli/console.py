"""Two consoles: results on standard output, everything else on standard error."""

import sys
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


class PrintableConsole(Console):
    """A console that shows control characters instead of obeying them: text may come from anybody's files."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the segments of what is printed; those that rich itself controls the terminal with stay."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control is None and not text.isprintable():
                text = "".join(c if c.isprintable() or c in "\n\xa0\u202f" else ascii(c)[1:-1] for c in text)
            yield segment if text == segment.text else segment._replace(text=text)


# A pipe or a file has no width of its own; tables keep theirs there.
output = PrintableConsole(markup=False, width=None if sys.stdout.isatty() else 120)
errors = PrintableConsole(markup=False, stderr=True, width=None if sys.stderr.isatty() else 120)


def tell_damaged(problem: Exception) -> None:
    """A file among results that is none: it is left out, and the rest is shown."""
    errors.print(f"left out: {problem}", style="yellow", soft_wrap=True, highlight=False, markup=False)
