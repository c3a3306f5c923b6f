"""The classifier's steps on rows that stay, without autograd, against autograd's."""

import pytest
import torch
import torch.nn.functional as F

from rehearse.learners import GenerativeReplay
from rehearse.learners.same_rows import SameRows
from rehearse.losses import soft_cross_entropy, soft_cross_entropy_with_gradient
from rehearse.nets import VAE, GatedMLP
from rehearse.nets.gated import RestPass


@pytest.mark.parametrize("known", [2, 4])
def test_the_gradient_of_soft_cross_entropy(known):
    torch.manual_seed(0)
    scores = torch.randn(5, 4, dtype=torch.double, requires_grad=True)
    probabilities = torch.rand(5, known, dtype=torch.double)
    losses = soft_cross_entropy(scores, probabilities)
    found, gradient = soft_cross_entropy_with_gradient(scores.detach(), probabilities)
    torch.testing.assert_close(found, losses)
    torch.testing.assert_close(gradient, torch.autograd.grad(losses.mean(), scores)[0])


def gated(kind=GatedMLP, dropout=0.4):
    torch.manual_seed(0)
    return kind(6, 7, 3, dropout).double().train()


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_a_pass_by_hand_gives_scores_and_gradient_of_the_plain_one(dropout):
    model = gated(dropout=dropout)
    activations, wanted = torch.randn(5, 14, dtype=torch.double), torch.randn(5, 3, dtype=torch.double)
    torch.manual_seed(1)
    passed = model.rest_by_hand()(activations)
    after = torch.get_rng_state()
    delta, gradient = passed.gradient(wanted)
    torch.manual_seed(1)
    leaf = activations.clone().requires_grad_()
    scores = model.rest(leaf)
    assert torch.equal(after, torch.get_rng_state()), "other random numbers than the plain pass draws"
    torch.testing.assert_close(passed.scores, scores)
    names = ["output.weight", "output.bias"]
    expected = torch.autograd.grad(scores, [leaf, model.output.weight, model.output.bias], wanted)
    torch.testing.assert_close([delta, *(gradient[name] for name in names)], list(expected))


class Doubled(GatedMLP):
    """Another network after the first layer, with the pass by hand of the one that it comes from."""

    @property
    def first(self):
        return self.hidden

    def rest(self, activations):
        return 2 * super().rest(activations)

    def forward(self, x):
        return self.rest(self.hidden(x))


@pytest.mark.parametrize("what", ["subclass", "patched", "watched", "more"])
def test_what_is_unusual_is_left_to_autograd(what):
    model = gated(Doubled if what == "subclass" else GatedMLP)
    if what == "patched":
        model.rest = lambda activations: 2 * GatedMLP.rest(model, activations)
    elif what == "watched":
        model.output.weight.register_hook(lambda gradient: 2 * gradient)
    elif what == "more":
        model.register_parameter("scale", torch.nn.Parameter(torch.ones((), dtype=torch.double)))
    steps = SameRows(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.rand(5, 6, dtype=torch.double))
    assert steps.pass_by_hand() is None


@pytest.mark.parametrize("replayed", [False, True])
def test_steps_by_hand_end_where_those_of_autograd_do(replayed, monkeypatch):
    ends, passed, plain = [], [], RestPass.gradient
    monkeypatch.setattr(RestPass, "gradient", lambda *rest: (passed.append(1), plain(*rest))[1])
    for by_hand in (True, False):
        torch.manual_seed(0)
        classifier, generator = GatedMLP(20, 7, 4, 0.4), VAE((20,), hidden=8, latent=3)
        learner = GenerativeReplay(
            classifier,
            torch.optim.SGD(classifier.parameters(), lr=0.1),
            generator,
            torch.optim.SGD(generator.parameters(), lr=0.01),
            memories=2,
            updates=4,
        )
        if not by_hand:
            monkeypatch.setattr(SameRows, "pass_by_hand", lambda self: None)
        for task in range(2 if replayed else 1):
            rows = torch.Generator().manual_seed(task)
            step = learner.observe(torch.rand(5, 20, generator=rows), torch.tensor([0, 1, 2, 3, 0]), task=task)
        ends.append([*classifier.parameters(), torch.tensor([step.incoming_loss, step.recalled_loss or 0.0])])
    assert len(passed) == (8 if replayed else 4)
    torch.testing.assert_close(*ends)


def test_the_plain_classifier_needs_no_autograd(monkeypatch):
    model = gated()
    steps = SameRows(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.rand(5, 6, dtype=torch.double))
    monkeypatch.setattr(torch.autograd, "grad", None)
    passed = steps.pass_by_hand()
    before = model.hidden.weight.clone()
    steps.step_by_hand(passed, F.softmax(passed.scores, 1))
    steps.finish()
    assert not torch.equal(before, model.hidden.weight)
