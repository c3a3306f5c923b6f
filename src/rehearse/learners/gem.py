"""Gradient episodic memory: no step that raises the loss of a past task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..batch import Batch, Step, Tree
from ..checks import check_memory, check_not_negative, needs_two_samples
from ..errors import InvalidInput, MissingExtra
from ..memory import TaskRingMemory
from ..network import NamedGradient, Network
from .steps import StepLearner, Updates

ROUNDS: Final = 5  # of the projection; one is enough unless gradients are nearly dependent
ROUNDING: Final = 1e-10


class GEM(StepLearner):
    """GEM (Lopez-Paz & Ranzato 2017, "Gradient Episodic Memory for Continual Learning").

        g   ← ∇ mean ℓ(B_n)                          the incoming batch, of task t
        g_k ← ∇ mean ℓ(M_k)   for every task k ≠ t   all that is held of that task
        if some ⟨g, g_k⟩ < 0:
            v ← argmin ½ vᵀGGᵀv + gᵀGᵀv  over v ≥ margin        G: the rows g_k
            g ← g + Gᵀv                              now ⟨g, g_k⟩ ≥ 0 for every k
        θ   ← SGD(g)
        M_t ← the last samples of task t             capacity // tasks of them

    The margin of 0.5 is that of the authors' experiments (and of Aljundi et al. 2019); it also bends the step
    towards past tasks. Without a margin the step is the nearest to g that raises no past task's loss.

    Differs from the source because

    - the quadratic programme is solved as non-negative least squares in double precision, without adding 10⁻³ to the
      diagonal of GGᵀ: that ridge is absolute, and moves the step where gradients are small and no margin binds;
    - the incoming batch enters the memory after the step: rows of the running task constrain nothing, so the steps
      are the same, and a refused batch is not remembered;
    - all outputs take part in the loss, whatever the task: the task is not known when predicting.

    Every pass, the stored samples' too, is in train mode and moves batch-norm's running statistics, as in the source.
    The stored samples pass in the precision of scoring, each task by itself, so that its batch statistics are its own.
    """

    task_aware = True
    memory: TaskRingMemory

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        memory: TaskRingMemory,
        *,
        margin: float = 0.5,
        updates: int = 1,
        loss: Any = None,
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        """Build a learner around a model; see `Replay` for the arguments.

        Args:
            model: Any module.
            optimizer: Any optimizer of its parameters except LBFGS.
            memory: A ring for each task.
            margin: The smallest v; the authors' experiments have 0.5.
        """
        network = Network(model, optimizer, prepare=prepare, precision=precision, clip=clip, random=seed)
        check_memory(memory, TaskRingMemory)
        super().__init__(network, loss, memory=memory, updates=updates)
        check_not_negative(margin=margin)
        _nnls()  # a missing extra is found now, not in the middle of a stream
        self.margin = margin

    def _steps(self, incoming: Batch) -> Updates:
        network, memory = self.network, self.memory
        replayed = memory.all(exclude_task=incoming.task) if memory.eligible(incoming.task) else None
        past = [part for part in _by_task(replayed) if len(part) > needs_two_samples(self.model)]  # M_k
        for _ in range(self.updates):
            loss, gradient, logits, *_ = self.plain.gradient(incoming, replayed=False)  # g
            # g_k, in the precision of scoring: these passes cost nearly all of a step
            passed = [self.plain.gradient(one, replayed=True, dtype=network.precision.scoring) for one in past]
            gradient = self._projected(gradient, [of_task.gradient for of_task in passed])
            step = Step(loss, fmean(of_task.loss for of_task in passed), replayed) if passed else Step(loss)
            yield step, logits, network.step(gradient)  # θ ← SGD(g)

    def _projected(self, gradient: NamedGradient, past: Sequence[NamedGradient]) -> NamedGradient:
        if not past:
            return gradient
        parameters = {name: value for name, (value, _) in self.network.trainable().items()}
        g = _flat(gradient, parameters)
        step = project(g, torch.stack([_flat(of_task, parameters) for of_task in past]), self.margin)
        if step is g:
            return gradient
        parts = torch.split(step, [value.numel() for value in parameters.values()])
        named = zip(parameters.items(), parts, strict=True)
        return NamedGradient({name: part.view_as(value).to(value.dtype) for (name, value), part in named})


def project(g: Tensor, past: Tensor, margin: float = 0.0) -> Tensor:
    """g + Gᵀv with v = argmin ½ vᵀGGᵀv + gᵀGᵀv over v ≥ margin, G = ``past``; g itself where no ⟨g, g_k⟩ < 0.

    With v = u + margin and b = g + Gᵀ·margin this is min ‖Gᵀu + b‖² over u ≥ 0, where only the triangular factor of
    [Gᵀ b] counts: a problem of as many unknowns as there are tasks. Rows of G are scaled to length one and b too, so
    that tolerances mean the same at every size of gradient; rows that are zero constrain nothing. Parallel or
    nearly dependent rows leave v undetermined, but not the step. The result is the point nearest to b where no
    ⟨·, g_k⟩ < 0: where rounding has missed that, it is sought again from the point found.
    """
    if bool((past @ g >= 0).all()):
        return g
    step = g + margin * past.sum(0)
    lengths = past.norm(dim=1)
    units = past[lengths > 0] / lengths[lengths > 0, None]
    tolerance = -ROUNDING * step.norm()
    for _ in range(ROUNDS):
        step = _nearest(step, units)
        if bool((units @ step >= tolerance).all()):
            break
    return step


def _nearest(b: Tensor, units: Tensor) -> Tensor:
    """b + Gᵀu with u = argmin ‖Gᵀu + b‖² over u ≥ 0."""
    nnls = _nnls()
    size = b.norm()
    if size == 0:
        return b
    factor = torch.linalg.qr(torch.cat([units, b[None] / size]).T, mode="r").R.cpu().numpy()
    try:
        u, _ = nnls(factor[:, :-1], -factor[:, -1], maxiter=100 * len(units))
    except RuntimeError as problem:
        raise InvalidInput(f"no step was found that raises no past task's loss: {problem}") from problem
    step: Tensor = b + size * (units.T @ torch.from_numpy(u).to(units))
    return step


def _by_task(samples: Batch | None) -> list[Batch]:
    """Return the samples in parts, one for each task."""
    if samples is None:
        return []
    assert isinstance(samples.task, Tensor)
    return [samples.take((samples.task == task).nonzero().flatten()) for task in torch.unique(samples.task)]


def _flat(gradient: NamedGradient, parameters: dict[str, Tensor]) -> Tensor:
    """A gradient as one vector in double precision; zero where a parameter has none."""
    parts = [gradient.get(name, torch.zeros_like(value)).flatten() for name, value in parameters.items()]
    return torch.cat(parts).double()


def _nnls() -> Any:
    """Return scipy's non-negative least squares; imported here, so that the library does not need scipy."""
    try:
        from scipy.optimize import nnls
    except ImportError as problem:
        raise MissingExtra("scipy", "gem") from problem
    return nnls
