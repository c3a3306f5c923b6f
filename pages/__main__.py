"""``python -m pages``: write docs/what-makes-it-work.md and its figures from results/."""

from __future__ import annotations

from pathlib import Path

from rehearse.files import write_whole
from rehearse.lab.campaign.store import results_in
from rehearse.lab.cli.console import tell_damaged
from rehearse.lab.paper.outcome import Results, outcome
from rehearse.lab.paper.targets import find_targets
from rehearse.lab.report.figures import write_figure

from .control_figures import CONTROL_FIGURES
from .controls import controls_page

ROOT = Path(__file__).resolve().parents[1]


def main() -> None:
    docs = ROOT / "docs"
    results = Results(results_in([ROOT / "results"], tell_damaged))
    found = [outcome(target, results) for target in find_targets(["controls"])]
    for one in found:
        write_figure(one, docs / "figures", CONTROL_FIGURES[one.target.name])
    drawn = {path.stem: f"figures/{path.name}" for path in (docs / "figures").glob("*.svg")}
    write_whole(docs / "what-makes-it-work.md", controls_page(found, drawn))


main()
