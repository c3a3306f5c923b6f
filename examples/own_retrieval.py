"""Your own retrieval: `rehearse run er-hardest er-further --import own_retrieval.py --stream split-mnist-5k`."""

from typing import Any

import torch

from rehearse import Batch
from rehearse.lab.methods import METHODS, replay


class HighestLoss:
    """Of ``pool`` candidates, replay those with the highest loss now: MIR without the look-ahead, at half its cost."""

    needs_gradient = False

    def __init__(self, pool: int) -> None:
        self.pool = pool

    def __call__(
        self, memory: Any, incoming: Batch, gradient: Any, engine: Any, budget: int
    ) -> tuple[Batch | None, torch.Tensor | None]:
        candidates = memory.sample(self.pool, exclude_task=incoming.task)
        losses, _ = engine.losses(candidates)  # one pass; with a gradient two: the losses now, and after the step
        highest = torch.topk(losses, min(budget, len(losses))).indices
        return candidates.take(highest), losses[highest]


class FurtherAhead:
    """MIR that looks ahead as far as ``steps`` steps along the gradient of the incoming batch would lead."""

    needs_gradient = True

    def __init__(self, steps: float) -> None:
        self.steps = steps

    def __call__(
        self, memory: Any, incoming: Batch, gradient: Any, engine: Any, budget: int
    ) -> tuple[Batch | None, torch.Tensor | None]:
        candidates = memory.sample(50, exclude_task=incoming.task)
        before, after = engine.losses(candidates, gradient.plus(gradient, self.steps - 1))
        most = torch.topk(after - before, min(budget, len(before))).indices
        return candidates.take(most), (after - before)[most]


METHODS["er-hardest"] = replay(  # on the command line: `-o pool=20`
    "replay of the highest losses", lambda spec: HighestLoss(spec.options["pool"]), options={"pool": 50}
)
METHODS["er-further"] = replay(
    "ER-MIR that looks further ahead", lambda spec: FurtherAhead(spec.options["steps"]), options={"steps": 3.0}
)

if __name__ == "__main__":
    from rehearse.lab.cli.app import app

    app(["run", "er-hardest", "er-further", "--import", __file__, "--stream", "split-mnist-5k", "--seeds", "1"])
