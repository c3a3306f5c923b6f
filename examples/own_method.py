"""Your own method on the command line: `rehearse run er er-warm --import own_method.py --stream split-mnist-5k`."""

from typing import Any

from rehearse import Learner, ReservoirMemory, Step
from rehearse.checks import needs_two_samples
from rehearse.lab.methods import METHODS, learner
from rehearse.network import Network
from rehearse.undo import all_or_nothing, assign, run


class WarmReplay(Learner):
    """Plain replay whose replayed samples weigh more and more over the first ``warmup`` samples of the stream."""

    def __init__(
        self, model: Any, optimizer: Any, memory: Any, *, warmup: int = 1000,
        budget: int = 10, updates: int = 1, exclude_current_task: bool = True,
        prepare: Any = None, precision: str = "auto", clip: float | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        network = Network(model, optimizer, prepare=prepare, precision=precision, clip=clip, random=seed)
        super().__init__(network, None, memory=memory, updates=updates)
        self.warmup, self.budget, self.exclude_current_task = warmup, budget, exclude_current_task

    def observe(self, x: Any, y: Any, task: Any = None, **columns: Any) -> Step:
        network, memory, incoming = self.network, self.memory, self._accept(x, y, task, **columns)
        current = incoming.task if self.exclude_current_task else None
        weight = min(1.0, self.samples_observed / self.warmup)  # of what is saved and undone already
        with self.lock, all_or_nothing(network, memory) as commit:  # whatever fails, nothing has changed
            engine, columns = self.plain.fastest(incoming.x), memory.check(incoming)
            step, replayed, replayed_loss = (), None, None
            with network.training(self.updates):
                for _ in range(self.updates):
                    run(step)  # of the update before this one
                    loss, gradient, *_ = engine.gradient(incoming, replayed=False)
                    if memory.eligible(current) > needs_two_samples(self.model):  # batch-norm needs two
                        replayed = memory.sample(self.budget, exclude_task=current)
                        replayed_loss, second, *_ = engine.gradient(replayed, replayed=True)
                        gradient = gradient.plus(second, weight)
                    step = engine.step(gradient)
            memory.keep(incoming, columns)
            commit(step, assign(self, progress=self.progress.after(incoming, self.updates)))
        return Step(loss, replayed_loss, replayed)


METHODS["er-warm"] = learner("plain replay with a warm-up", WarmReplay, ReservoirMemory)  # its option: warmup

if __name__ == "__main__":
    from rehearse.lab.cli.app import app

    app(["run", "er", "er-warm", "--import", __file__, "--stream", "split-mnist-5k", "--seeds=1", "-o", "warmup=500"])
