"""``python -m pages``: write docs/what-makes-it-work.md, its figures, and the marks of front pages from results/."""

from __future__ import annotations

from pathlib import Path

from rehearse.files import write_whole
from rehearse.lab.campaign.store import results_in
from rehearse.lab.cli.console import warn_damaged
from rehearse.lab.paper.outcome import Results, outcome
from rehearse.lab.paper.targets import find_targets
from rehearse.lab.report.figures import write_figure

from .comparisons import comparisons
from .control_figures import CONTROL_FIGURES
from .controls import controls_page
from .front import FILLED, FRONT, USED, draw_front, fill, front_parts

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    docs = ROOT / "docs"
    results = Results(results_in([ROOT / "results"], warn_damaged))
    found = [outcome(target, results) for target in find_targets(["strong", "controls"])]
    for one in found:
        write_figure(one, docs / "figures", CONTROL_FIGURES[one.target.name])
    drawn = {path.stem: f"figures/{path.name}" for path in (docs / "figures").glob("*.svg")}
    write_whole(docs / "what-makes-it-work.md", controls_page(found, drawn))
    compared = [comparison for one in found for comparison in comparisons(one)]
    front = outcome(FRONT, results)
    write_figure(front, docs / "figures", draw_front)
    parts = front_parts(front, [outcome(target, results) for target in find_targets(USED)], compared)
    for page in (ROOT / name for name in FILLED):
        write_whole(page, fill(page.read_text("utf-8"), parts))


main()
