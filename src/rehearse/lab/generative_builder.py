"""From a spec to a learner that replays from a generator: GEN and GEN-MIR."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

import torch

from ..errors import InvalidInput
from ..latent import LatentSearch
from ..learners import Coefficients, GenerativeReplay, LatentRetrieval, Learner
from ..nets import VAE
from .builders import Problem, defaults, drawn, network_and_optimizer, settings
from .spec import Plain, Spec

OWN: Final = ("memories", "replay_weight", "reuse", "snapshot_every", "beta", "warmup")
SIZES: Final = ("depth", "hidden", "latent", "dropout", "reconstruction", "sigma")
SEARCHED: Final = ("init", "gradient", "reference", "decode", "virtual_step", "ranking")
TERMS: Final = tuple(term.name for term in fields(Coefficients))

# What a run that replays from a generator may set: see GenerativeReplay and VAE.
GENERATOR_OPTIONS: dict[str, Plain] = {
    **defaults(GenerativeReplay, *OWN),
    "generator_lr": 0.001,
    **defaults(VAE, *SIZES, divergence="kl"),
    "reconstruction": "gaussian",  # fits inputs of any range; streams of inputs in [0, 1] say "bernoulli"
}
# And what its search may set: see LatentRetrieval; the coefficients for each of the two networks.
SEARCH_OPTIONS: dict[str, Plain] = {
    "mir_on": "both",
    **defaults(Coefficients, **{f"classifier_{term}": term for term in TERMS if term != "reconstruction"}),
    **defaults(Coefficients, **{f"generator_{term}": term for term in TERMS}),
    "generator_entropy": 1.0,
    **defaults(LatentSearch, "step_size", search_steps="steps"),
    **defaults(LatentRetrieval, *SEARCHED, generator_rate="rate"),
}


def generative(spec: Spec, problem: Problem) -> Learner:
    """Build GEN or GEN-MIR."""
    classifier, optimizer = network_and_optimizer(spec, problem)
    options: dict[str, Any] = dict(spec.options)
    sizes = {name: options[name] for name in SIZES} | {"kl": options["divergence"]}
    generator = drawn(lambda: VAE(problem.input_shape, **sizes), spec, problem, "generator-init")
    return GenerativeReplay(
        classifier,
        optimizer,
        generator,
        torch.optim.Adam(generator.parameters(), lr=options["generator_lr"], fused=True),
        classifier_retrieval=_latent_retrieval("classifier", options),
        generator_retrieval=_latent_retrieval("generator", options),
        **settings(spec, problem),
        **{name: options[name] for name in OWN},
    )


def _latent_retrieval(network: str, options: Mapping[str, Any]) -> LatentRetrieval | None:
    """Return the search for one of the two networks, or None if it replays plain samples."""
    searched = options.get("mir_on")  # GEN has no such option
    if searched not in ("classifier", "generator", "both", None):
        raise InvalidInput(f"mir_on is {searched!r}; it must be classifier, generator or both")
    if searched not in (network, "both"):
        return None
    return LatentRetrieval(
        search=LatentSearch(options["search_steps"], options["step_size"]),
        coefficients=Coefficients(**{term: options.get(f"{network}_{term}", 0.0) for term in TERMS}),
        rate=options["generator_rate"] if network == "generator" else None,
        **{name: options[name] for name in SEARCHED},
    )
