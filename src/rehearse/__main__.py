"""``python -m rehearse``: the command line."""

from .lab.cli import main

main()
