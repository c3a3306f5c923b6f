"""Your own retrieval: `rehearse run er-hardest er-pushed --import own_retrieval.py --stream split-mnist-5k`."""

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
        if memory.eligible(incoming.task) == 0:
            return None, None
        candidates = memory.sample(self.pool, exclude_task=incoming.task)
        losses, _ = engine.losses(candidates)  # one pass; with a gradient two: the losses now, and after the step
        highest = torch.topk(losses, min(budget, len(losses))).indices
        return candidates.take(highest), losses[highest]


class MostPushedDown(HighestLoss):
    """Of ``pool`` candidates, replay those of the classes whose output the incoming batch lowers most: no pass."""

    needs_gradient = True

    def __call__(
        self, memory: Any, incoming: Batch, gradient: Any, engine: Any, budget: int
    ) -> tuple[Batch | None, torch.Tensor | None]:
        if memory.eligible(incoming.task) == 0:
            return None, None
        candidates = memory.sample(self.pool, exclude_task=incoming.task)
        *_, pushed = engine.named(gradient).values()  # of the last parameter: the bias of the outputs
        lowered = pushed[candidates.y]
        most = torch.topk(lowered, min(budget, len(lowered))).indices
        return candidates.take(most), lowered[most]


for name, kind, summary in (
    ("er-hardest", HighestLoss, "replay of the stored samples with the highest loss"),
    ("er-pushed", MostPushedDown, "replay of the classes that the incoming batch pushes down"),
):  # an option of the command line, with its default: `-o pool=20`
    METHODS[name] = replay(summary, lambda spec, kind=kind: kind(spec.options["pool"]), options={"pool": 50})

if __name__ == "__main__":
    from rehearse.lab.cli.app import app

    run = ["run", "er-hardest", "er-pushed", "--import", __file__, "--stream", "split-mnist-5k"]
    app([*run, "--seeds", "1", "-o", "pool=30"])
