"""ER-ACE: the loss by hand, and `Replay` with it against a literal loop."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from replay_by_hand import batches, learner, net, sgd

from rehearse.batch import Batch
from rehearse.losses import AsymmetricCrossEntropy
from rehearse.retrieval import Uniform


def test_incoming_samples_compete_with_classes_of_their_batch_alone() -> None:
    logits = torch.tensor([[math.log(3.0), 50.0, 0.0], [0.0, 50.0, math.log(4.0)]])
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 2]))
    by_hand = torch.tensor([-math.log(3 / 4), -math.log(4 / 5)])
    torch.testing.assert_close(AsymmetricCrossEntropy()(logits, batch, False), by_hand)
    over_all = F.cross_entropy(logits, batch.y, reduction="none")
    torch.testing.assert_close(AsymmetricCrossEntropy()(logits, batch, True), over_all)


def test_absent_classes_get_no_gradient() -> None:
    logits = torch.randn(4, 5, requires_grad=True)
    batch = Batch(torch.zeros(4, 1), torch.tensor([1, 3, 3, 1]))
    (gradient,) = torch.autograd.grad(AsymmetricCrossEntropy()(logits, batch, False).sum(), logits)
    assert (gradient[:, [0, 2, 4]] == 0).all()
    assert (gradient[:, [1, 3]] != 0).all()
    alone = Batch(torch.zeros(4, 1), torch.tensor([2, 2, 2, 2]))
    (gradient,) = torch.autograd.grad(AsymmetricCrossEntropy()(logits, alone, False).sum(), logits)
    assert (gradient == 0).all()


def test_replay_with_the_asymmetric_loss_is_the_literal_algorithm() -> None:
    ours, literal = learner(AsymmetricCrossEntropy(), Uniform()), net()
    current = 0
    for x, y, task in batches():
        step = ours.observe(x, y, task)
        present = sorted(set(y.tolist()))
        places = torch.tensor([present.index(label) for label in y.tolist()])
        loss = F.cross_entropy(literal(x)[:, present], places)
        if step.replayed is not None:
            loss = loss + F.cross_entropy(literal(step.replayed.x), step.replayed.y)
            current += task in step.replayed.task.tolist()
        sgd(literal, loss)
    assert current >= 5  # stored samples of the current task are replayed too
    for one, other in zip(ours.model.parameters(), literal.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
