"""`strong_replay` and how learners describe themselves."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from rehearse import HighestLoss, MostInterfered, Replay, ReservoirMemory, Uniform, strong_replay
from rehearse.errors import InvalidInput
from rehearse.learners import GenerativeReplay
from rehearse.learners.strong import SETTINGS
from rehearse.losses import AveragedDistillation
from rehearse.nets import VAE, GatedMLP
from rehearse.transforms import Chain, Crop, Flip


def parts(classes: int = 4) -> tuple[nn.Module, torch.optim.Optimizer, ReservoirMemory]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 16), nn.ReLU(), nn.Linear(16, classes))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), ReservoirMemory(40)


@pytest.mark.parametrize("kind", ["images", "vectors"])
def test_it_is_replay_with_these_settings_and_says_so(kind: Any) -> None:
    learner = strong_replay(*parts(), kind)
    text, chosen = repr(learner), SETTINGS[kind]
    assert type(learner) is Replay
    assert learner.budget == chosen["budget"] > 10
    assert not learner.exclude_current_task
    assert learner.batchnorm.joint
    assert text.startswith("Replay(Sequential, SGD, ReservoirMemory(40), retrieval=Uniform(), ")
    for name, value in chosen.items():
        assert f"{name}={value!r}" in text
    for words in ("exclude_current_task=False", "average=0.01", "batchnorm='joint'"):
        assert words in text


def test_it_learns_classes_one_after_the_other() -> None:
    torch.manual_seed(1)
    centers = torch.rand(4, 1, 6, 6)
    for kind in ("images", "vectors"):
        learner = strong_replay(*parts(), kind, **({"augment": Crop(1)} if kind == "images" else {}))
        for label in range(4):
            for _ in range(60):
                y = torch.full((5,), label)
                learner.observe(centers[y] + 0.1 * torch.randn(5, 1, 6, 6), y, task=label)
        assert learner.predict(centers).tolist() == [0, 1, 2, 3]


def test_overrides_win() -> None:
    learner = strong_replay(*parts(), "images", retrieval=HighestLoss(60), budget=20, average=None, augment=None)
    expected = (
        "Replay(Sequential, SGD, ReservoirMemory(40), retrieval=HighestLoss(candidates=60), budget=20, "
        "exclude_current_task=False, predict_by='nearest-mean', batchnorm='joint')"
    )
    assert repr(learner) == expected
    with pytest.raises(InvalidInput, match="kind is 'sounds'"):
        strong_replay(*parts(), "sounds")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="buget"):
        strong_replay(*parts(), buget=20)


def test_defaults_are_not_shown() -> None:
    assert repr(Replay(*parts())) == "Replay(Sequential, SGD, ReservoirMemory(40), retrieval=MostInterfered())"


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}, "loss=CrossEntropyLoss()"),
        ({"loss": AveragedDistillation(1.0), "average": 0.1}, "loss=AveragedDistillation(weight=1.0"),
        ({"loss": lambda logits, y: logits.sum(1)}, "<lambda>"),
        ({"augment": Chain(Crop(2), Flip(0.3))}, "augment=Chain(Crop(padding=2), Flip(p=0.3))"),
        ({"batchnorm": "recalibrated"}, "batchnorm='recalibrated'"),
        ({"retrieval": Uniform(20)}, "retrieval=Uniform(candidates=20)"),
        ({"retrieval": MostInterfered(30, every=3)}, "retrieval=MostInterfered(candidates=30, every=3)"),
    ],
)  # fmt: skip
def test_settings_are_shown_as_they_would_be_written(options: dict[str, Any], shown: str) -> None:
    learner = Replay(*parts(), **options)
    assert shown in repr(learner)
    assert repr(copy.deepcopy(learner)) == repr(learner)


def test_it_follows_later_changes_and_pickling() -> None:
    learner = strong_replay(*parts())
    learner.optimizer = torch.optim.Adam(learner.model.parameters())
    learner.budget = 64
    assert repr(pickle.loads(pickle.dumps(learner))) == repr(learner)
    assert "(Sequential, Adam, " in repr(learner)
    assert "budget=64" in repr(learner)


def test_other_learners_have_one_too() -> None:
    classifier, generator = GatedMLP(8, 4, 3), VAE((1, 2, 4), hidden=5, latent=2)
    own, theirs = torch.optim.SGD(classifier.parameters(), 0.1), torch.optim.Adam(generator.parameters())
    learner = GenerativeReplay(classifier, own, generator, theirs, memories=2)
    assert repr(learner) == "GenerativeReplay(GatedMLP, SGD, VAE, Adam, memories=2)"
