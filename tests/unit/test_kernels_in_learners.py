"""The kernels inside learners: resumed to the bit, with users' own models, in scoring and in searches."""

from __future__ import annotations

import pytest
import torch
from having_kernels import needs_kernels, random, recorded
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rehearse.batch import Batch
from rehearse.learners import AutoencoderReplay, CodeSearch, Replay
from rehearse.memory import ReservoirMemory
from rehearse.nets import ConvAutoencoder, ReducedResNet18
from rehearse.retrieval import MostInterfered

pytestmark = needs_kernels


def test_candidates_are_scored_through_the_kernels() -> None:
    torch.manual_seed(0)
    model = ReducedResNet18(base=20)
    replay = Replay(
        model, torch.optim.SGD(model.parameters(), lr=0.05), ReservoirMemory(50), MostInterfered(candidates=20)
    )
    replay.observe(random(10, 3, 32, 32), torch.arange(10) % 2, 0)
    with recorded() as calls:
        replay.observe(random(10, 3, 32, 32, seed=1), torch.arange(10) % 2 + 2, 1)
    assert calls.count("normalise") == 2 * 20  # before the step and after it; training is in float32


def learner(seed: int = 0) -> AutoencoderReplay:
    torch.manual_seed(seed)
    classifier, coder = ReducedResNet18(base=4, input_shape=(3, 32, 32)), ConvAutoencoder((3, 32, 32), channels=4)
    return AutoencoderReplay(
        classifier,
        torch.optim.SGD(classifier.parameters(), lr=0.05),
        coder,
        torch.optim.Adam(coder.parameters()),
        ReservoirMemory(30),
        search=CodeSearch(candidates=20),
        budget=10,
        autoencoder_epochs=1,
        autoencoder_budget=10,
        precision="bfloat16",
    )


def learned(subject: AutoencoderReplay, steps: range) -> AutoencoderReplay:
    for step in steps:
        x, y, task = random(10, 3, 32, 32, seed=step).tanh(), torch.arange(10) % 2 + 2 * (step // 3), step // 3
        if step % 3 == 0:
            subject.begin_task(Batch(x, y, task), task)
        subject.observe(x, y, task)
    return subject


class Checkpointed(ReducedResNet18):
    """Passes its body again when its gradient is taken."""

    def features(self, x: Tensor) -> Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


class Viewing(nn.Module):
    """Views what its convolutions give as flat rows, which takes torch's usual layout."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU())
        self.head = nn.Linear(5 * 8 * 8, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.f(x)
        return self.head(h.view(len(h), -1))


@pytest.mark.parametrize("precision", ["auto", "bfloat16"])
@pytest.mark.parametrize("kind", ["checkpointed", "viewing"])
def test_models_that_torch_takes_are_taken(kind: str, precision: str) -> None:
    torch.manual_seed(0)
    model = Viewing() if kind == "viewing" else Checkpointed(4, base=4)
    side = 8 if kind == "viewing" else 32
    replay = Replay(
        model,
        torch.optim.SGD(model.parameters(), lr=0.05),
        ReservoirMemory(50),
        MostInterfered(candidates=20),
        precision=precision,
    )
    with recorded() as calls:
        for step in range(4):
            replay.observe(random(10, 3, side, side, seed=step), torch.arange(10) % 2 + 2 * (step // 2), step // 2)
    assert bool(calls) is (kind == "checkpointed")


def test_a_search_before_there_is_a_previous_classifier() -> None:
    subject = learner()
    for step in range(3):  # without tasks all that is stored may be recalled, from the second batch on
        subject.observe(random(10, 3, 32, 32, seed=step).tanh(), torch.arange(10) % 2)
    assert subject.previous is None
    assert subject.search is not None
    assert subject.search.report()["searches"] == 2
    assert not any("forward" in vars(module) for module in subject.model.modules())


def test_a_learner_goes_on_to_the_bit_and_two_are_alike() -> None:
    with recorded() as calls:
        whole = learned(learner(), range(6))
    assert {"convolve", "normalise", "gradients", "normalise_gradient"} == set(calls)
    again = learner(1)
    again.load_state_dict(learned(learner(), range(4)).state_dict())
    learned(again, range(4, 6))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])
    for name, value in whole.autoencoder.state_dict().items():
        assert torch.equal(value, again.autoencoder.state_dict()[name])
    x = random(8, 3, 32, 32, seed=9)
    assert torch.equal(whole.predict_proba(x), again.predict_proba(x))
