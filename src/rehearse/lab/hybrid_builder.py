"""From a spec to a learner that replays from a memory of codes: AE and AE-MIR."""

from __future__ import annotations

from typing import Any

import torch

from ..latent import LatentSearch
from ..learners import CodeReplay, CodeSearch, Learner
from ..memory import ReservoirMemory
from ..nets import ConvAutoencoder
from ..random import seed_sequence
from .builders import Problem, candidates, network_and_optimizer, settings
from .spec import Plain, Spec

# What a run with a memory of codes may set: the autoencoder, the codes, who sees what (notes to each in
# CodeReplay and ConvAutoencoder).
CODE_OPTIONS: dict[str, Plain] = {
    "autoencoder_epochs": 5,
    "autoencoder_budget": 100,
    "autoencoder_lr": 0.001,
    "channels": 20,
    "depth": 3,
    "output": "tanh",
    "codes": "float32",
    "copies": 1,
    "replay_share": 0.5,
    "autoencode_incoming": True,
    "autoencode_test": True,
    "statistics": "running",
    "refresh": "epoch",
    "refresh_every": 100,
}
# And what its search may set, in CodeSearch's words.
CODE_SEARCH_OPTIONS: dict[str, Plain] = {
    "autoencode_virtual": True,
    "kl": 20.0,
    "entropy": 1.0,
    "foreseen_entropy": 1.0,
    "search_steps": 1,
    "step_size": 10.0,
    "snapshot_every": 100,
}
# Of these, what has no part in which autoencoder is trained, nor in which codes are stored.
WITHOUT_PART = frozenset({"copies", "replay_share", "autoencode_incoming", "autoencode_test", *CODE_SEARCH_OPTIONS})
OWN = (
    "autoencoder_epochs", "autoencoder_budget", "codes", "copies", "replay_share", "autoencode_incoming",
    "autoencode_test", "autoencode_virtual", "statistics", "refresh", "refresh_every", "snapshot_every",
)  # fmt: skip


def coded(spec: Spec, problem: Problem) -> Learner:
    """AE."""
    return _hybrid(spec, problem, {**CODE_OPTIONS, **spec.options}, None)


def coded_and_searched(spec: Spec, problem: Problem) -> Learner:
    """AE-MIR."""
    options: dict[str, Any] = {**CODE_OPTIONS, **CODE_SEARCH_OPTIONS, **spec.options}
    weights = {name: options[name] for name in ("kl", "entropy")} | {"ahead_entropy": options["foreseen_entropy"]}
    search = LatentSearch(options["search_steps"], options["step_size"])
    return _hybrid(spec, problem, options, CodeSearch(search, candidates=candidates(spec), **weights))


def _hybrid(spec: Spec, problem: Problem, options: dict[str, Any], search: CodeSearch | None) -> Learner:
    classifier, optimizer = network_and_optimizer(spec, problem)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed_sequence(spec.seed, "autoencoder-init").generate_state(1)[0]))
        sizes = {name: options[name] for name in ("channels", "depth", "output")}
        autoencoder = ConvAutoencoder(problem.input_shape, **sizes).to(problem.device)
    return CodeReplay(
        classifier,
        optimizer,
        autoencoder,
        torch.optim.Adam(autoencoder.parameters(), lr=options["autoencoder_lr"], fused=True),
        ReservoirMemory(spec.capacity or 1, seed=spec.seed),
        search=search,
        budget=spec.budget or 100,
        autoencoder_batch=spec.batch_size,
        exclude_current_task=spec.exclude_current_task is not False,
        **settings(spec, problem),
        **{name: options[name] for name in OWN if name in options},
    )
