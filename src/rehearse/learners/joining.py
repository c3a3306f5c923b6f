"""How a learner joins the other processes that train its model."""

from __future__ import annotations

from ..checks import check_switches
from ..described import short
from ..distributed import Ranks, SharedEngine, share_memory, shareable
from ..memory import Memory
from .base import Learner


def joined_ranks(distributed: bool, seed: int) -> tuple[Ranks | None, int]:
    """Return the process group, if a learner is to be distributed, and the seed for what it draws for itself."""
    check_switches(distributed=distributed)
    ranks = Ranks() if distributed else None
    return ranks, seed if ranks is None else ranks.own_seed(seed)


def join(learner: Learner, memory: Memory, ranks: Ranks | None, *, early: bool) -> None:
    """Let a learner train together with the other processes from now on; the last part of its construction.

    Args:
        learner: The learner.
        memory: Its memory.
        ranks: The processes, or None to train alone. With one process nothing differs from that but the saves.
        early: Whether the retrieval needs the gradient of the incoming batch.

    Raises:
        InvalidInput: If the learner cannot be distributed, or the ranks have built different ones.
    """
    learner.ranks = ranks
    if ranks is None or ranks.count == 1:
        return
    network, averaged = learner.network, {} if learner.average is None else learner.average.tensors
    shared = SharedEngine(learner.plain, ranks, early=early)
    held = {**dict(network.model.named_parameters()), **dict(network.model.named_buffers())}
    alike = {
        "memories": shareable(memory),
        "learners": learner,
        "precision": network.precision.name,
        "limits of the gradient (clip)": network.clip,
        "functions that prepare inputs": short(network.prepare),
        "seeds": ranks.seed,
        "models": [(name, own.dtype, tuple(own.shape)) for name, own in held.items()],
        "trained parameters": list(network.trainable()),
        "optimizers": network.optimizer,
    }
    ranks.make_same(alike, [*held.values(), *averaged.values()])
    share_memory(memory, ranks)
    learner.plain, learner._reporting, learner._all_or_nothing = shared, ranks.reporting, ranks.all_or_nothing
