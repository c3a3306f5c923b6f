"""SCR: supervised contrastive replay with prediction by the nearest mean."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..batch import Batch, Kind, Step, Tree
from ..checks import check_above_zero, check_memory, check_positive
from ..described import Described
from ..engine import joined
from ..losses import at_least_float32
from ..memory import Memory
from ..network import Network, finite
from ..transforms import Augmentation, Transform
from .nearest_mean import NearestMean, NearestMeanLearner
from .steps import Updates


class SCR(NearestMeanLearner):
    """SCR (Mai et al. 2021, "Supervised Contrastive Replay").

        B ← B_n ∪ B_M                              B_M: ``budget`` stored samples, of all tasks
        V ← B ∪ augment(B)                         two views of each sample
        z ← f_θ(V) / ‖f_θ(V)‖                      the model ends in a projection
        ℓ_i = −mean_{p ∈ P(i)} log ( exp(z_i·z_p / τ) / Σ_{a ≠ i} exp(z_i·z_a / τ) )
        θ ← SGD(mean ℓ, α)                         P(i): the other views with the class of i
        M ← UpdateMemory(B_n)
      prediction:
        the nearest mean of what enters ``head``; see `NearestMean`

    Differs from the source: both views share a pass, and so their batch-norm statistics; the first batch, for which
    nothing is stored, is trained on too; `augment` is the caller's choice (the source crops, mirrors and changes
    colors).
    """

    classes_only = True
    memory: Memory
    exclude_current_task = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        memory: Memory,
        *,
        budget: int = 100,
        updates: int = 1,
        temperature: float = 0.07,
        augment: Transform | None = None,
        head: str | None = None,
        prepare: Callable[[Tree], Tree] | None = None,
        precision: str = "auto",
        clip: float | None = None,
        seed: int = 0,
    ) -> None:
        """Build a learner around a model.

        Args:
            model: A module that ends in a projection, of at least as many outputs as there are classes.
            optimizer: Any optimizer of its parameters except LBFGS.
            memory: The store; it has a seed of its own.
            budget: The number of samples to replay.
            updates: Steps per incoming batch.
            temperature: τ.
            augment: Makes the second view; see `Replay`. Without it both are the same but for dropout.
            head: The name of the projection; by default that of the last linear layer.
            prepare: See `Replay`.
            precision: See `Replay`.
            clip: See `Replay`.
            seed: Of the random numbers that the model and ``augment`` draw.
        """
        network = Network(model, optimizer, prepare=prepare, precision=precision, clip=clip, random=seed)
        check_memory(memory, Memory)
        super().__init__(network, SupervisedContrastive(temperature), memory=memory, updates=updates)
        check_positive(budget=budget)
        self.budget, self.temperature = budget, temperature
        self.augment = None if augment is None else Augmentation(augment, seed)
        self.nearest = NearestMean(network, memory, head=head)

    def _steps(self, incoming: Batch) -> Updates:
        network, memory = self.network, self.memory
        for _ in range(self.updates):
            replayed = memory.sample(self.budget) if len(memory) else None  # B_M
            batch = incoming if replayed is None else joined(incoming, replayed)  # B
            views = joined(batch, batch if self.augment is None else self.augment(batch))  # V
            outputs = network(network.ready(views.x))
            finite(outputs.norm())  # an infinite one would be scaled to zero
            losses = self.loss(outputs, views.to(network.device), False)  # ℓ
            finite(losses.mean())
            first, second = losses.detach().view(2, -1).mean(0).tensor_split([len(incoming)])
            step = Step(first.mean().item(), second.mean().item() if len(second) else None, replayed)
            yield step, None, network.step(network.gradient(losses.mean()))  # θ ← SGD(mean ℓ, α)


class SupervisedContrastive(Described):
    """The loss of a batch in which every sample attracts those of its class and repels all others; see `SCR`.

    A sample that is alone in its class has no loss.
    """

    kind: Kind | None = "classes"

    def __init__(self, temperature: float = 0.07) -> None:
        """Set τ."""
        check_above_zero(temperature=temperature)
        self.temperature = temperature

    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        """Return one value per sample."""
        z = F.normalize(at_least_float32(logits).flatten(1), dim=1)
        same = torch.eye(len(z), dtype=torch.bool, device=z.device)
        logs = (z @ z.t() / self.temperature).masked_fill(same, -torch.inf).log_softmax(1)
        positive: Tensor = (batch.y[:, None] == batch.y) & ~same
        return -logs.where(positive, 0).sum(1) / positive.sum(1).clamp(min=1)
