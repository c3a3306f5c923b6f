"""Gradient episodic memory: no step that raises the loss of a past task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..batch import Batch, Tree
from ..errors import InvalidType, MissingExtra
from ..gradients import Gradient
from ..memory import TaskRingMemory
from ..parts import stepped_parameters
from .base import Learner
from .checks import check_not_negative, check_positive, needs_two_rows
from .step import Step, mean_loss

ROUNDS: Final = 5  # of the projection; one is enough unless gradients are nearly dependent
ROUNDING: Final = 1e-10


class GEM(Learner):
    """GEM (Lopez-Paz & Ranzato 2017, "Gradient Episodic Memory for Continual Learning").

        g   ← ∇ mean ℓ(B_n)                          the incoming batch, of task t
        g_k ← ∇ mean ℓ(M_k)   for every task k ≠ t   all that is held of that task
        if some ⟨g, g_k⟩ < 0:
            v ← argmin ½ vᵀGGᵀv + gᵀGᵀv  over v ≥ margin        G: the rows g_k
            g ← g + Gᵀv                              now ⟨g, g_k⟩ ≥ 0 for every k
        θ   ← SGD(g)
        M_t ← the last rows of task t                capacity // tasks of them

    The margin of 0.5 is that of the authors' experiments (and of Aljundi et al. 2019); it also bends the step
    towards past tasks. Without a margin the step is the nearest to g that raises no past task's loss.

    Differs from the source because

    - the quadratic programme is solved as non-negative least squares in double precision, without adding 10⁻³ to the
      diagonal of GGᵀ: that ridge is absolute, and moves the step where gradients are small and no margin binds;
    - the incoming batch enters the memory after the step: rows of the running task constrain nothing, so the steps
      are the same, and a refused batch is not remembered;
    - all outputs take part in the loss, whatever the task: the task is not known when predicting.

    Every pass, the memories' too, is in train mode and moves batch-norm's running statistics, as in the source.
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
        super().__init__(model, optimizer, loss=loss, prepare=prepare, precision=precision, clip=clip, seed=seed)
        check_rings(memory)
        check_positive(updates=updates)
        check_not_negative(margin=margin)
        _nnls()  # without scipy no GEM can be made
        self.memory, self.margin, self.updates = memory, margin, updates

    def observe(self, x: Tree, y: Any, task: Any = None, id: Any = None) -> Step:
        """Learn from the incoming batch without raising the loss of a past task, then remember it."""
        incoming = self._accept(x, y, task, id)
        columns = self.memory.check(incoming)
        self.memory.share(incoming)
        recalled = self.memory.all(exclude_task=incoming.task) if self.memory.eligible(incoming.task) else None
        past = [rows for rows in _by_task(recalled) if len(rows) > 1 or not needs_two_rows(self.model)]  # M_k
        with self._transaction(parameters=self.updates > 1):
            for _ in range(self.updates):
                loss = mean_loss(self._losses(incoming, recalled=False))
                gradient = self._gradient(loss)  # g
                losses = [mean_loss(self._losses(rows, recalled=True)) for rows in past]
                gradients = [self._gradient(of_task) for of_task in losses]  # g_k
                self._apply(self._projected(gradient, gradients))  # θ ← SGD(g̃)
        self.memory.keep(incoming, columns)
        self._settle(incoming)
        return Step(loss.item(), torch.stack(losses).mean().item(), recalled) if losses else Step(loss.item())

    def _projected(self, gradient: Gradient, past: Sequence[Gradient]) -> Gradient:
        if not past:
            return gradient
        parameters = {name: value for name, (value, _) in stepped_parameters(self.model, self.optimizer).items()}
        g = _flat(gradient, parameters)
        step = project(g, torch.stack([_flat(of_task, parameters) for of_task in past]), self.margin)
        if step is g:
            return gradient
        parts = torch.split(step, [value.numel() for value in parameters.values()])
        return {
            name: part.view_as(value).to(value.dtype)
            for (name, value), part in zip(parameters.items(), parts, strict=True)
        }

    def _own_state(self) -> dict[str, Any]:
        return {"memory": self.memory.state_dict()}

    def _load_own_state(self, state: dict[str, Any]) -> None:
        self.memory.load_state_dict(state["memory"])


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


def _nnls() -> Any:
    try:
        from scipy.optimize import nnls  # here, so that importing the package does not import scipy
    except ImportError:
        raise MissingExtra("scipy", "gem") from None
    return nnls


def _nearest(b: Tensor, units: Tensor) -> Tensor:
    """b + Gᵀu with u = argmin ‖Gᵀu + b‖² over u ≥ 0."""
    nnls = _nnls()
    size = b.norm()
    if size == 0:
        return b
    factor = torch.linalg.qr(torch.cat([units, b[None] / size]).T, mode="r").R.cpu().numpy()
    u, _ = nnls(factor[:, :-1], -factor[:, -1], maxiter=100 * len(units))
    step: Tensor = b + size * (units.T @ torch.from_numpy(u).to(units))
    return step


def check_rings(memory: Any) -> None:
    if not isinstance(memory, TaskRingMemory):
        raise InvalidType(f"the memory must be a TaskRingMemory, a ring for each task; this is {memory!r}")


def _by_task(rows: Batch | None) -> list[Batch]:
    """The rows in parts, one for each task."""
    if rows is None:
        return []
    assert isinstance(rows.task, Tensor)
    return [rows.take((rows.task == task).nonzero().flatten()) for task in torch.unique(rows.task)]


def _flat(gradient: Gradient, parameters: dict[str, Tensor]) -> Tensor:
    """A gradient as one vector in double precision; zero where a parameter has none."""
    parts = [gradient.get(name, torch.zeros_like(value)).flatten() for name, value in parameters.items()]
    return torch.cat(parts).double()
