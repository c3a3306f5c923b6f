"""From a spec to a learner that replays from a memory of codes: AE and AE-MIR."""

from __future__ import annotations

from typing import Any, Final

import torch

from ..latent import LatentSearch
from ..learners import CodeReplay, CodeSearch, Learner
from ..memory import ReservoirMemory
from ..nets import ConvAutoencoder
from .builders import Problem, candidates, defaults, drawn, memory, network_and_optimizer, settings
from .spec import Plain, Spec

SIZES: Final = ("channels", "depth", "output")
OWN: Final = (
    "autoencoder_epochs", "autoencoder_budget", "codes", "copies", "replay_share", "autoencode_incoming",
    "autoencode_test", "statistics", "refresh", "refresh_every",
)  # fmt: skip
OWN_OF_SEARCH: Final = ("autoencode_virtual", "snapshot_every")

# What a run with a memory of codes may set: see CodeReplay and ConvAutoencoder.
CODE_OPTIONS: dict[str, Plain] = {
    **defaults(CodeReplay, *OWN),
    "autoencoder_lr": 0.001,
    **defaults(ConvAutoencoder, *SIZES),
}
# And what its search may set: see CodeSearch.
CODE_SEARCH_OPTIONS: dict[str, Plain] = {
    **defaults(CodeReplay, *OWN_OF_SEARCH),
    **defaults(CodeSearch, "kl", "entropy", foreseen_entropy="ahead_entropy"),
    "search_steps": CodeSearch().search.steps,
    "step_size": CodeSearch().search.step_size,
}
# Of these, what does not change which autoencoder is trained, nor which codes are stored.
WITHOUT_PART = frozenset({"copies", "replay_share", "autoencode_incoming", "autoencode_test", *CODE_SEARCH_OPTIONS})


def coded(spec: Spec, problem: Problem) -> Learner:
    """Build AE, or AE-MIR if the spec has the options of its search."""
    classifier, optimizer = network_and_optimizer(spec, problem)
    options: dict[str, Any] = dict(spec.options)
    search = _search(spec, options) if "search_steps" in options else None
    sizes = {name: options[name] for name in SIZES}
    autoencoder = drawn(lambda: ConvAutoencoder(problem.input_shape, **sizes), spec, problem, "autoencoder-init")
    return CodeReplay(
        classifier,
        optimizer,
        autoencoder,
        torch.optim.Adam(autoencoder.parameters(), lr=options["autoencoder_lr"], fused=True),
        memory(ReservoirMemory, spec, problem),
        search=search,
        autoencoder_batch=spec.batch_size,
        **settings(spec, problem, "budget", "exclude_current_task"),
        **{name: options[name] for name in (*OWN, *OWN_OF_SEARCH) if name in options},
    )


def _search(spec: Spec, options: dict[str, Any]) -> CodeSearch:
    weights = {"kl": options["kl"], "entropy": options["entropy"], "ahead_entropy": options["foreseen_entropy"]}
    return CodeSearch(LatentSearch(options["search_steps"], options["step_size"]), **weights, **candidates(spec))
