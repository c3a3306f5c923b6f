"""From a spec to a learner that replays from a generator: GEN and GEN-MIR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch

from ..errors import InvalidInput
from ..latent import LatentSearch
from ..learners import Coefficients, GenerativeReplay, LatentRetrieval, Learner
from ..nets import VAE
from ..random import seed_sequence
from .builders import Problem, network_and_optimizer, settings
from .spec import Plain, Spec

# What a run that replays from a generator may set: how much is replayed, and the generator (notes to each in
# GenerativeReplay and VAE).
GENERATOR_OPTIONS: dict[str, Plain] = {
    "memories": 4,
    "replay_weight": 1.0,
    "reuse": True,
    "snapshot_every": 100,
    "beta": 1.0,
    "warmup": 1000,
    "generator_lr": 0.001,
    "depth": 1,
    "hidden": 128,
    "latent": 50,
    "dropout": 0.0,
    "reconstruction": "gaussian",
    "sigma": 1.0,
    "divergence": "closed",
}
# And what its search may set, in LatentRetrieval's words; the coefficients for each of the two networks.
SEARCH_OPTIONS: dict[str, Plain] = {
    "mir_on": "both",
    "classifier_kl": 0.1,
    "classifier_entropy": 0.9,
    "classifier_diversity": 1.0,
    "classifier_shell": 0.0,
    "generator_kl": 0.1,
    "generator_reconstruction": 0.0,
    "generator_entropy": 1.0,
    "generator_diversity": 1.0,
    "generator_shell": 0.0,
    "search_steps": 10,
    "step_size": 0.1,
    "init": "prior",
    "gradient": "fresh",
    "reference": "snapshot",
    "decode": "own",
    "virtual_step": "sgd",
    "generator_rate": None,
    "ranking": 1,
}


def generative(spec: Spec, problem: Problem) -> Learner:
    classifier, optimizer = network_and_optimizer(spec, problem)
    options: dict[str, Any] = {**GENERATOR_OPTIONS, **spec.options}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seed_sequence(spec.seed, "generator-init").generate_state(1)[0]))
        sizes = {name: options[name] for name in ("depth", "hidden", "latent", "dropout", "reconstruction", "sigma")}
        generator = VAE(problem.input_shape, kl=options["divergence"], **sizes).to(problem.device)
    return GenerativeReplay(
        classifier,
        optimizer,
        generator,
        torch.optim.Adam(generator.parameters(), lr=options["generator_lr"], fused=True),
        classifier_retrieval=_latent_retrieval("classifier", options),
        generator_retrieval=_latent_retrieval("generator", options),
        **settings(spec, problem),
        **{name: options[name] for name in ("memories", "replay_weight", "reuse", "snapshot_every", "beta", "warmup")},
    )


def _latent_retrieval(network: str, options: Mapping[str, Any]) -> LatentRetrieval | None:
    """The search for one of the two networks, or None where it replays plain samples."""
    searched = options.get("mir_on")  # GEN has no such option
    if searched not in ("classifier", "generator", "both", None):
        raise InvalidInput(f"mir_on is {searched!r}; it must be classifier, generator or both")
    if searched not in (network, "both"):
        return None
    prefix = f"{network}_"
    terms = [field.name for field in fields(Coefficients)]
    return LatentRetrieval(
        search=LatentSearch(options["search_steps"], options["step_size"]),
        coefficients=Coefficients(**{term: options.get(prefix + term, 0.0) for term in terms}),
        rate=options["generator_rate"] if network == "generator" else None,
        **{name: options[name] for name in ("init", "gradient", "reference", "decode", "virtual_step", "ranking")},
    )
