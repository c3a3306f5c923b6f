"""What campaigns measure beside the accuracy of `predict`: other ways to predict from one training, own metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from ..batch import Tree, checked_inputs, tree_parts
from ..batchnorm import Recalibrated
from ..learners import CodeReplay, GenerativeReplay, Learner
from .batchnorm import Published
from .measurements import generator_losses, reconstruction_errors

REAL_TEST: Final = "real-test"
"""The predictor of a `CodeReplay` that sees inputs as they are."""
Predict = Callable[[Tree], Tensor]


def alternative_predictors(learner: Learner) -> dict[str, Predict]:
    """Return other ways to predict that the same training serves, by name."""
    if isinstance(learner, CodeReplay) and learner.autoencode_test:
        return {REAL_TEST: lambda x: _predict_real(learner, x)}
    if not isinstance(learner.batchnorm, Published) or not learner.network.has_batchnorm:
        return {}
    clean, moved, recalibrated = learner.batchnorm.clean, learner.batchnorm.moved, Recalibrated()

    def estimated() -> dict[str, Tensor]:
        assert learner.memory is not None
        return clean(learner.model) | recalibrated.statistics(learner.model, learner.memory, learner._move_buffers)

    return {
        "clean": (lambda x: _predict_with(learner, clean(learner.model), x)) if moved else learner.predict,
        "recalibrated": lambda x: _predict_with(learner, estimated(), x),
    }


def own_metrics(learner: Learner, x: Tree) -> dict[str, float]:
    """Return what a method can measure of itself on a test set, beyond accuracy.

    For a generator these are the parts of its mean loss, their sum, and the sum with the KL part weighted by β, which
    Table 5 of the paper calls the negative ELBO; for an autoencoder the mean squared error.
    """
    if isinstance(learner, CodeReplay):
        return {"reconstruction": reconstruction_errors(learner, x).mean().item()}
    if not isinstance(learner, GenerativeReplay):
        return {}
    losses = generator_losses(learner, x)
    reconstruction, kl = losses.reconstruction.double().mean().item(), losses.kl.double().mean().item()
    return {
        "reconstruction": reconstruction,
        "kl": kl,
        "negative_elbo": reconstruction + kl,
        "generator-loss": reconstruction + learner.beta * kl,
    }


def _predict_with(learner: Learner, statistics: dict[str, Tensor], x: Tree) -> Tensor:
    with learner._read_only():
        logits = [learner._pass(part, statistics) for part in tree_parts(checked_inputs(x))]
    return torch.cat(logits).argmax(1)


def _predict_real(learner: CodeReplay, x: Tree) -> Tensor:
    with learner.lock:
        try:
            learner.autoencode_test = False
            predicted: Tensor = learner.predict(x)
            return predicted
        finally:
            learner.autoencode_test = True
