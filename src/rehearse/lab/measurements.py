"""What a second network makes, and how well it fits: a generator or an autoencoder. Nothing changes the learner."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ..batch import Tree, checked_batch, checked_inputs, tree_parts
from ..checks import check_positive
from ..latent import Elbo, View
from ..learners import CodeReplay, GenerativeReplay
from ..random import RandomState, borrowed

EVALUATION_SEED: Final = 0  # the noise of evaluation is the same for every learner and at every time


class Retrieved(NamedTuple):
    """What a step replays, as the networks see it: Figures 2 and 3."""

    incoming: Tensor
    classifier: Tensor | None
    generator: Tensor | None


def generator_losses(learner: GenerativeReplay, x: Tree) -> Elbo:
    """Return −ELBO of each sample in its two parts, in eval mode, with noise that is the same every time."""
    with _measuring(learner) as generator:
        parts = [generator.loss(part) for part in tree_parts(learner._inputs(checked_inputs(x)))]
    return Elbo(*(torch.cat(values) for values in zip(*parts, strict=True)))


def imagine(learner: GenerativeReplay, samples: int) -> Tensor:
    """Return samples of the present generator, from the same points in latent space every time."""
    check_positive(samples=samples)
    with _measuring(learner) as generator:
        return generator.decode(learner._prior(samples))


def reconstruct(learner: GenerativeReplay, x: Tree) -> Tensor:
    """Return what the present generator makes of inputs, through the mean of their code."""
    with _measuring(learner) as generator:
        return generator.decode(generator.encode(learner._inputs(checked_inputs(x)))[0])


def retrieve(learner: GenerativeReplay, x: Tree, y: Any) -> Retrieved:
    """Return what a step of the present task on this batch would replay: Figures 2 and 3."""
    with learner._read_only(), borrowed(learner.network.random), contextlib.ExitStack() as undo:
        for search in learner._searches():
            undo.callback(search.snapshot())
        batch = learner._prepared(checked_batch(x, y))
        past = learner.past._replace(samples=learner.past.samples + len(batch))
        found = learner._retrieve(batch, past, labeled=True), learner._retrieve(batch, past, labeled=False)
    both = zip(found, (learner.classifier_retrieval, learner.generator_retrieval), strict=True)
    # Samples whose search starts from the incoming ones stay in their order, each below its own.
    ranked = [one.ranked() if one and own and own.init == "prior" else one for one, own in both]
    return Retrieved(batch.x, *(None if one is None else one.x for one in ranked))


def reconstruction_errors(learner: CodeReplay, x: Tree) -> Tensor:
    """Return the mean squared error of each input after it has been stored, on the scale of the classifier."""
    return torch.cat([(after - x).square().flatten(1).double().mean(1) for x, after in learner._rebuilt(x)])


@contextlib.contextmanager
def _measuring(learner: GenerativeReplay) -> Iterator[View]:
    """Yield the present generator in eval mode; its noise is the same every time."""
    network = learner.generator_network
    with learner._read_only(), borrowed(RandomState(EVALUATION_SEED, "evaluation")), network.looking("evaluation"):
        yield View(network, network.twin.tensors())
