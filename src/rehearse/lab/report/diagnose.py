"""A picture of what a batch would do to the memories."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...diagnose import Diagnosis
from ..extras import needs

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def diagnose_plot(diagnosis: Diagnosis, by: Literal["class", "task"] = "class") -> Figure:
    """The loss of each memory before and after the virtual step, and the mean interference of each class or task.

    Gives a matplotlib figure: ``diagnose_plot(learner.diagnose(x, y)).savefig("interference.png")``.
    """
    with needs("matplotlib", "lab"):
        from matplotlib.figure import Figure
    groups = diagnosis.by(by)
    figure = Figure(figsize=(7, 3), layout="constrained")
    losses, means = figure.subplots(1, 2)
    _draw_losses(losses, diagnosis)
    names = [str(group) for group in groups]
    means.bar(names, [mean for _, mean in groups.values()], color="#4477aa")
    means.axhline(0, color="black", linewidth=0.8)
    means.set_xlabel(by)
    means.set_ylabel("mean interference")
    return figure


def _draw_losses(axes: Any, diagnosis: Diagnosis) -> None:
    before, after = diagnosis.before.numpy(), diagnosis.after.numpy()
    harmed = diagnosis.interference.numpy() > 0
    for which, colour, label in ((harmed, "#cc3311", "harmed"), (~harmed, "#4477aa", "not harmed")):
        axes.plot(before[which], after[which], ".", color=colour, markersize=4, label=f"{label} ({int(which.sum())})")
    top = float(np.nanmax(np.concatenate([before, after]))) if len(before) else 1.0
    axes.plot([0, top], [0, top], color="black", linewidth=0.8)
    axes.set_xlabel("loss of a memory now")
    axes.set_ylabel("loss after a step on the batch")
    axes.legend(frameon=False)
