"""A small `GenerativeReplay`, batches for it, and its previous networks as modules."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rehearse.batch import Step
from rehearse.latent import LatentSearch, View
from rehearse.learners import GenerativeReplay, LatentRetrieval
from rehearse.nets import MLP, VAE
from rehearse.network import Network

LR, GENERATOR_LR = 0.1, 0.01


def learner(
    classifier: nn.Module | None = None, generator: nn.Module | None = None, **options: Any
) -> GenerativeReplay:
    torch.manual_seed(0)
    classifier = classifier or MLP(6, (8,), 4)
    generator = generator or VAE((6,), hidden=8, latent=3)
    return GenerativeReplay(
        classifier,
        torch.optim.SGD(classifier.parameters(), lr=LR),
        generator,
        torch.optim.SGD(generator.parameters(), lr=GENERATOR_LR),
        **{"memories": 2, **options},
    )


def retrieval(steps: int = 2, **options: Any) -> LatentRetrieval:
    return LatentRetrieval(LatentSearch(steps), **options)


def batch(seed: int, samples: int = 5) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(samples, 6, generator=generator), torch.randint(0, 4, (samples,), generator=generator)


def observed(ours: GenerativeReplay, *tasks: int) -> Step:
    """Observe one batch for each of these tasks; returns the last step."""
    for number, task in enumerate(tasks):
        step = ours.observe(*batch(number), task=task)
    return step


def searches(ours: GenerativeReplay) -> dict[str, Any]:
    found: dict[str, Any] = ours.diagnostics().get("search", {})
    return found


def previous(ours: GenerativeReplay) -> tuple[nn.Module, nn.Module]:
    """Classifier and generator of the last snapshot, in eval mode."""
    assert ours.past.previous is not None
    return restored(ours.model, ours.past.previous.classifier), restored(ours.generator, ours.past.previous.generator)


def restored(model: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    copied = copy.deepcopy(model).eval()
    with torch.no_grad():
        for name, tensor in [*copied.named_parameters(), *copied.named_buffers()]:
            tensor.copy_(tensors[name])
    return copied


def view(model: nn.Module, tensors: Mapping[str, Tensor] | None = None) -> View:
    """A view of a model in eval mode."""
    network = Network(model.eval(), torch.optim.SGD(model.parameters(), lr=0.1))
    with network.looking("evaluation"):
        return View(network, network.twin.tensors() | dict(tensors or {}))
