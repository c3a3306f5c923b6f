"""Losses: every accepted form returns the right value for each sample; anything else raises an error."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rehearse.batch import Batch
from rehearse.errors import InvalidInput, InvalidType
from rehearse.losses import CrossEntropy, as_loss, class_targets, per_sample

LOGITS = torch.tensor([[0.0, 0.0], [math.log(3.0), 0.0]])
CLASSES = Batch(torch.zeros(2, 1), torch.tensor([0, 1]))
BY_HAND = torch.tensor([math.log(2.0), math.log(4.0)])  # −log ½ and −log ¼


class ThreeArgumentModule(nn.Module):
    def forward(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        return F.cross_entropy(logits, batch.y, reduction="none") * (10 if replayed else 1)


class TwoArgumentModule(nn.Module):
    def forward(self, logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")


class CallableObject:
    def __call__(self, logits: Tensor, batch: Batch, replayed: bool) -> Tensor:
        return F.cross_entropy(logits, batch.y, reduction="none")


@pytest.mark.parametrize(
    "form",
    [
        None,
        CrossEntropy(),
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(reduction="sum"),
        lambda logits, y: F.cross_entropy(logits, y, reduction="none"),
        functools.partial(F.cross_entropy, reduction="none"),
        lambda logits, batch, replayed: F.cross_entropy(logits, batch.y, reduction="none"),
        TwoArgumentModule(),
        ThreeArgumentModule(),
        CallableObject(),
    ],
    ids=["none", "ours", "torch", "torch-sum", "two", "partial", "three", "module-two", "module-three", "object"],
)
def test_every_form_of_cross_entropy_returns_the_value_by_hand(form: Any) -> None:
    torch.testing.assert_close(as_loss(form)(LOGITS, CLASSES, False), BY_HAND)


def test_a_loss_may_treat_replayed_samples_differently() -> None:
    loss = as_loss(ThreeArgumentModule())
    torch.testing.assert_close(loss(LOGITS, CLASSES, True), 10 * BY_HAND)


def test_the_users_module_is_not_changed() -> None:
    module = nn.CrossEntropyLoss()
    as_loss(module)
    assert module.reduction == "mean"


def test_losses_of_bfloat16_logits_are_float32_and_of_float64_logits_float64() -> None:
    assert as_loss(None)(LOGITS.bfloat16(), CLASSES, False).dtype == torch.float32
    assert as_loss(nn.CrossEntropyLoss())(LOGITS.double(), CLASSES, False).dtype == torch.float64


def test_options_of_torchs_losses_are_kept() -> None:
    weighted = as_loss(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0])))
    torch.testing.assert_close(weighted(LOGITS, CLASSES, False), BY_HAND * torch.tensor([1.0, 5.0]))


def test_class_probabilities_as_targets() -> None:
    soft = Batch(torch.zeros(2, 1), torch.tensor([[0.5, 0.5], [0.0, 1.0]], dtype=torch.float64))
    expected = torch.tensor([math.log(2.0), math.log(4.0)])
    torch.testing.assert_close(as_loss(nn.CrossEntropyLoss())(LOGITS, soft, False), expected)


def test_pixelwise_labels_are_averaged_by_sample() -> None:
    logits = torch.randn(2, 3, 4)
    batch = Batch(torch.zeros(2, 1), torch.randint(0, 3, (2, 4)))
    expected = torch.stack([F.cross_entropy(logits[i].T, batch.y[i]) for i in range(2)])
    torch.testing.assert_close(as_loss(None)(logits, batch, False), expected)
    torch.testing.assert_close(as_loss(nn.CrossEntropyLoss())(logits, batch, False), expected)


def test_values() -> None:
    batch = Batch(torch.zeros(2, 1), torch.tensor([1.0, 3.0]))
    loss = as_loss(nn.MSELoss())
    assert loss.kind == "values"
    assert loss(torch.tensor([[0.0], [1.0]]), batch, False).tolist() == [1.0, 4.0]
    two = Batch(torch.zeros(1, 1), torch.tensor([[1, 3]]))
    assert loss(torch.tensor([[0.0, 0.0]]), two, True).tolist() == [5.0]


def test_labels() -> None:
    batch = Batch(torch.zeros(1, 1), torch.tensor([[1, 0]]))
    loss = as_loss(nn.BCEWithLogitsLoss())
    assert loss.kind == "labels"
    torch.testing.assert_close(loss(torch.zeros(1, 2), batch, False), torch.tensor([math.log(2.0)]))


@pytest.mark.parametrize(
    ("form", "kind"),
    [
        (None, "classes"),
        (nn.NLLLoss(), "classes"),
        (nn.L1Loss(), "values"),
        (lambda s, y: s[:, 0], None),
        (lambda s, b, r: s[:, 0], None),
    ],
)
def test_kinds_of_outputs(form: Any, kind: str | None) -> None:
    assert as_loss(form).kind == kind


@pytest.mark.parametrize("form", [None, nn.CrossEntropyLoss()])
@pytest.mark.parametrize(
    ("y", "kind", "words"),
    [
        (torch.tensor([0, 2]), InvalidInput, "label 2 is outside the model's 2 outputs"),
        (torch.tensor([-1, 0]), InvalidInput, "label -1 is negative"),
        (torch.tensor([0.0, 1.0]), InvalidType, "integers"),
        (torch.tensor([True, False]), InvalidType, "integers"),
        (torch.tensor([[0], [1]]), InvalidInput, r"shape \(2, 1\) do not fit outputs of shape \(2, 2\)$"),
        (torch.tensor([[0, 1], [1, 1]]), InvalidInput, r"shape \(2, 2\) do not fit outputs of shape \(2, 2\)$"),
        (torch.tensor([[0, 1], [1, 0]]), InvalidInput, r"shape \(2, 2\).*one-hot.*pass class indices, y\.argmax\(1\)$"),
        (
            torch.tensor([[False, True], [True, False]]),
            InvalidType,
            r"torch\.bool; .*pass class indices, y\.argmax\(1\)$",
        ),
    ],
)
def test_invalid_labels(form: Any, y: Tensor, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        as_loss(form)(LOGITS, Batch(torch.zeros(2, 1), y), False)


def test_of_probabilities_it_is_said_how_to_make_them_labels() -> None:
    for y, advice in (
        ([[0.3, 0.7], [1.0, 0.0]], r"look like .* probabilities: pass class indices, y\.argmax\(1\)$"),
        ([[0.3, 0.9], [1.0, 0.0]], r"; for values pass loss=nn\.MSELoss\(\)$"),
    ):
        with pytest.raises(InvalidType, match=r"integers, these are torch\.float32.*" + advice):
            as_loss(None)(LOGITS, Batch(torch.zeros(2, 1), torch.tensor(y)), False)


def test_labels_of_any_integer_dtype() -> None:
    for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32):
        assert class_targets(LOGITS, torch.tensor([0, 1], dtype=dtype)).dtype == torch.int64
        batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1], dtype=dtype))
        torch.testing.assert_close(as_loss(None)(LOGITS, batch, True), BY_HAND)


@pytest.mark.parametrize("form", [5, "cross_entropy", nn.CrossEntropyLoss, CrossEntropy])
def test_invalid_losses(form: Any) -> None:
    with pytest.raises(InvalidType, match="callable"):
        as_loss(form)


@pytest.mark.parametrize(
    ("form", "y", "words"),
    [
        (F.cross_entropy, torch.tensor([0, 1]), "reduction='none'"),
        (lambda logits, y: logits[:1, 0], torch.tensor([0, 1]), "one value per sample"),
        (functools.partial(F.cross_entropy, reduction="none"), torch.tensor([0, 5]), "cannot judge"),
        (nn.MSELoss(), torch.zeros(2, 3), r"shape \(2, 3\) do not fit"),
        (nn.MSELoss(), torch.zeros(4), r"shape \(4,\) do not fit"),
    ],
)
def test_losses_that_do_not_fit_the_batch(form: Any, y: Tensor, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        as_loss(form)(LOGITS, Batch(torch.zeros(2, 1), y), False)


def test_per_sample_averages_over_other_dimensions() -> None:
    assert per_sample(torch.tensor([[1.0, 3.0], [2.0, 2.0]]), 2).tolist() == [2.0, 2.0]
    assert per_sample(torch.tensor([1.0, 3.0]), 2).tolist() == [1.0, 3.0]
