"""Your own retrieval: `rehearse run er-hardest --import own_retrieval.py --stream split-mnist-5k`."""

from typing import Any

import torch

from rehearse import Batch
from rehearse.lab.methods import METHODS, replay


class HighestLoss:
    """Of 50 candidates, replay those with the highest loss before the step: MIR without the look-ahead."""

    needs_gradient = True

    def __call__(
        self, memory: Any, incoming: Batch, gradient: Any, engine: Any, budget: int
    ) -> tuple[Batch | None, torch.Tensor | None]:
        if memory.eligible(incoming.task) == 0:
            return None, None
        candidates = memory.sample(50, exclude_task=incoming.task)
        before, _ = engine.losses(candidates, gradient)
        highest = torch.topk(before, min(budget, len(before))).indices
        return candidates.take(highest), before[highest]


METHODS["er-hardest"] = replay("replay of the stored samples with the highest loss", lambda spec: HighestLoss())

if __name__ == "__main__":
    from rehearse.lab.cli.app import app

    app(["run", "er-hardest", "--import", __file__, "--stream", "split-mnist-5k", "--seeds", "1"])
