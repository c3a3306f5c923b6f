"""``python -m rehearse``: the command line."""

from .cli import main

main()
