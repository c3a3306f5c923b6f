"""Your own method on the command line: `rehearse run er-warm --import own_method.py --stream split-mnist-5k`."""

from typing import Any

from rehearse import Replay, ReservoirMemory, Step, Uniform
from rehearse.lab.methods import METHODS, learner


class WarmReplay(Replay):
    """Plain replay that raises its learning rate linearly over the first ``warmup`` samples."""

    def __init__(self, model: Any, optimizer: Any, memory: Any, *, warmup: int = 1000, **more: Any) -> None:
        super().__init__(model, optimizer, memory, Uniform(), **more)
        self.warmup, self.rate = warmup, optimizer.param_groups[0]["lr"]

    def observe(self, x: Any, y: Any, task: Any = None, id: Any = None) -> Step:
        share = min(1.0, (self.samples_observed + len(x)) / self.warmup)
        self.optimizer.param_groups[0]["lr"] = share * self.rate
        return super().observe(x, y, task, id)


METHODS["er-warm"] = learner("plain replay with a warm-up", WarmReplay, ReservoirMemory)  # its option: warmup

if __name__ == "__main__":
    from rehearse.lab.cli.app import app

    app(["run", "er", "er-warm", "--import", __file__, "--stream", "split-mnist-5k", "--seeds=1", "-o", "warmup=500"])
