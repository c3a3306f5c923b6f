"""The paper's figures from results: PNG and SVG, in the layout of a printed column."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...files import replace_file
from ...metrics import accuracy_seen
from ..extras import needs
from ..paper.outcome import Outcome, values_of
from ..statistics import summary

Draw = Callable[[Outcome, Any], None]
# Okabe and Ito's colours, which colour-blind readers can tell apart; the marker says the same in black and white.
LOOKS = {
    "ER": ("#0072B2", "o"), "ER-MIR": ("#D55E00", "s"), "GEM": ("#009E73", "^"), "GEN": ("#56B4E9", "D"),
    "GEN-MIR": ("#CC79A7", "v"), "AE-Random": ("#0072B2", "o"), "AE-MIR": ("#D55E00", "s"),
    "AE-MIR, ten codes ten times": ("#E69F00", "D"), "- test AE": ("#009E73", "^"),
    "- train & test AE": ("#CC79A7", "v"),
}  # fmt: skip
STYLE = {
    "font.size": 8, "axes.labelsize": 8, "legend.fontsize": 7, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "axes.spines.top": False, "axes.spines.right": False, "axes.linewidth": 0.6, "lines.linewidth": 1.3,
    "lines.markersize": 3.5, "axes.grid": True, "grid.linewidth": 0.4, "grid.alpha": 0.35, "legend.frameon": False,
    "svg.hashsalt": "rehearse", "svg.fonttype": "none",
}  # fmt: skip


def write_figure(outcome: Outcome, folder: Path, draw: Draw | None = None) -> list[Path]:
    """Draw a target that is a figure of the paper, or any with ``draw``; nothing where nothing was run for it."""
    draw = draw or FIGURES.get(outcome.target.name)
    if draw is None or not any(outcome.runs.values()):
        return []
    with needs("matplotlib", "lab"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    paths = [folder / f"{outcome.target.name}.{kind}" for kind in ("png", "svg")]
    with rc_context(STYLE):
        figure = Figure(figsize=(3.5, 2.6), dpi=300, layout="constrained")
        draw(outcome, figure)
        for path in paths:
            # no date in the file: the same results give the same bytes
            file, metadata = io.BytesIO(), {"Date": None} if path.suffix == ".svg" else None
            figure.savefig(file, format=path.suffix[1:], metadata=metadata)
            replace_file(path, file.getbuffer())
    return paths


def seen_so_far(outcome: Outcome, figure: Any) -> None:
    """Figure 4: accuracy on the tasks seen so far, mean and 95 % interval over seeds, after each task."""
    axes = figure.subplots()
    for (row, _), runs in outcome.runs.items():
        if runs:
            matrices = [np.array(result["matrices"]["test"], dtype=np.float64) for result in runs.values()]
            curve = np.array([accuracy_seen(matrix) for matrix in matrices])
            points = [summary(curve[:, task]) for task in range(curve.shape[1])]
            tasks = np.arange(1, len(points) + 1)
            colour, marker = LOOKS.get(row, ("black", "x"))
            axes.plot(
                tasks, [100 * p.mean for p in points], color=colour, marker=marker, label=f"{row} (n = {len(runs)})"
            )
            bounds = [p.shown or (p.mean, p.mean) for p in points]
            low, high = ([100 * bound[side] for bound in bounds] for side in (0, 1))
            axes.fill_between(tasks, low, high, color=colour, alpha=0.18, linewidth=0)
            axes.set_xticks(tasks)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("tasks seen")
    axes.set_ylabel("accuracy on tasks seen so far (%)")
    axes.grid(axis="x", visible=False)
    axes.legend(loc="best")


def by_codes(outcome: Outcome, figure: Any) -> None:
    """Figures 5 to 7: accuracy and forgetting by the number of stored codes, mean and 95 % interval over seeds.

    What was not run is a gap; one run has no interval, and no line goes through it.
    """
    figure.set_size_inches(5.5, 2.8)
    columns = list(dict.fromkeys(column for _, column in outcome.runs))
    codes = np.array([int(column.removesuffix(" codes").replace(",", "")) for column in columns])
    rows = list(dict.fromkeys(row for row, _ in outcome.runs))
    for axes, metric in zip(figure.subplots(1, 2), ("accuracy", "forgetting"), strict=True):
        for index, row in enumerate(rows):
            colour, marker = LOOKS.get(row, ("black", "x"))
            where = codes + 0.02 * codes.max() * (index - (len(rows) - 1) / 2)  # aside, so that intervals are seen
            found = [summary(_values(outcome, row, column, metric)) for column in columns]
            heights = [100 * point.mean if point.n else np.nan for point in found]
            half = [np.nan if p.shown is None else 50 * (p.shown[1] - p.shown[0]) for p in found]
            seeds = seeds_of(outcome, row, columns)
            label = f"{row} (n = {seeds})" if seeds else f"{row} (not run)"
            axes.errorbar(where, heights, half, color=colour, marker=marker, linestyle="none", capsize=2, label=label)
            several = [height if point.n > 1 else np.nan for height, point in zip(heights, found, strict=True)]
            axes.plot(where, several, color=colour)
        axes.set_xticks(codes, [column.removesuffix(" codes") for column in columns])
        axes.set_xlim(0, 1.07 * codes.max())
        axes.set_xlabel("stored codes")
        axes.set_ylabel(f"{metric} (%)")
        axes.grid(axis="x", visible=False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)


def seeds_of(outcome: Outcome, row: str, columns: Sequence[str]) -> str:
    """How many runs there are in each column, once where it is the same; nothing where there are none."""
    counts = [len(outcome.runs.get((row, column), {})) for column in columns]
    if not any(counts):
        return ""
    return str(counts[0]) if len(set(counts)) == 1 else ", ".join(map(str, counts))


def _values(outcome: Outcome, row: str, column: str, metric: str) -> list[float]:
    return list(values_of(outcome.runs.get((row, column), {}), metric).values())


FIGURES: Mapping[str, Draw] = {"figure4": seen_so_far, **dict.fromkeys(("figure5", "figure6", "figure7"), by_codes)}
