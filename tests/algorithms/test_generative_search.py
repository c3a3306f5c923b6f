"""The search of generative replay: what it looks ahead to, what it measures, and when it falls back."""

import numpy as np
import pytest
import torch
from generative_learner import batch, learner, observed, previous, restored, retrieval, searches, view
from torch import nn

from rehearse.errors import InvalidInput
from rehearse.lab.measurements import retrieve
from rehearse.latent import Elbo, LatentSearch, View, divergence, entropy, gaussian_kl
from rehearse.learners import Coefficients, LatentRetrieval
from rehearse.learners.generative.objectives import generator_objective, soft_cross_entropy
from rehearse.nets import MLP, VAE
from rehearse.network import NamedGradient


def test_a_virtual_step_of_the_optimizer_is_clipped():
    ours = learner(classifier_retrieval=retrieval(virtual_step="optimizer"), clip=1e-3)
    observed(ours, 0, 0)
    gradient = NamedGradient({name: torch.ones_like(value) for name, value in ours.model.named_parameters()})
    ahead = ours.classifier_retrieval.view_ahead(ours.network, gradient).tensors
    steps = [ahead[name] - value for name, value in ours.model.named_parameters()]
    length = torch.linalg.vector_norm(torch.cat([step.flatten() for step in steps])).item()
    assert length == pytest.approx(0.1 * 1e-3, rel=1e-2)


@pytest.mark.parametrize("decode", ["own", "previous"])
def test_a_generator_that_does_not_move_has_no_interference(decode):
    torch.manual_seed(0)
    generator, classifier = view(VAE((6,), hidden=8, latent=3)), view(MLP(6, (8,), 4))
    objective = generator_objective(Coefficients(kl=1.0, reconstruction=1.0), classifier, generator, generator, decode)
    points = torch.randn(7, 3)
    assert torch.equal(objective.measure(points)[0], torch.zeros(7))


def test_without_steps_a_search_measures_the_same_before_and_after():
    search = LatentRetrieval(LatentSearch(steps=0), Coefficients(kl=1.0, reconstruction=1.0))
    ours = learner(generator_retrieval=search)
    observed(ours, 0, 0, 1, 1, 1)
    found = searches(ours)["generator"]
    assert found["searches"] == 3
    assert found["interference_before"] == pytest.approx(found["interference_after"], abs=1e-6)


class Exploding(VAE):
    """Far from the prior its samples are infinite."""

    def decode(self, z):
        return super().decode(z) * torch.where(z.detach().abs().amax() > 1e3, torch.inf, 1.0)


def test_points_that_are_not_finite_when_decoded_are_not_replayed():
    far = LatentRetrieval(LatentSearch(steps=2, step_size=1e6), Coefficients(diversity=1.0))
    ours = learner(generator=Exploding((6,), hidden=8, latent=3), classifier_retrieval=far)
    step = observed(ours, 0, 0, 1, 1)
    assert step.replayed is not None
    assert bool(step.replayed.x.isfinite().all())
    found = searches(ours)["classifier"]
    assert (found["searches"], found["fallbacks"]) == (2, 2)


def test_every_seventh_search_of_a_generator_is_measured():
    ours = learner(generator_retrieval=LatentRetrieval(LatentSearch(steps=0)))
    observed(ours, 0, *[1] * 8)
    found = searches(ours)["generator"]
    assert (found["searches"], found["measured"]) == (8, 2)
    assert found["interference_after"] == found["interference_before"] != 0


def test_measuring_the_generator_does_not_affect_learning(monkeypatch):
    states = []
    for every in (1, 5):
        monkeypatch.setattr("rehearse.learners.generative.objectives.MEASURED_EVERY", every)
        torch.manual_seed(1)
        ours = learner(generator=VAE((6,), hidden=8, latent=3, dropout=0.3), generator_retrieval=retrieval())
        observed(ours, 0, *[1] * 6)
        states.append((ours.model.state_dict(), ours.generator.state_dict()))
        assert searches(ours)["generator"]["measured"] == -(-6 // every)
    assert all(torch.equal(states[0][part][name], states[1][part][name]) for part in (0, 1) for name in states[0][part])


class NotJudged(VAE):
    """In eval mode its reconstruction loss is infinite."""

    def loss(self, x):
        found = super().loss(x)
        return found if self.training else Elbo(found.reconstruction / 0, found.kl)


def test_terms_of_weight_zero_do_not_cause_fallbacks():
    torch.manual_seed(1)
    ours = learner(generator=NotJudged((6,), hidden=8, latent=3), generator_retrieval=retrieval())
    observed(ours, 0, *[1] * 8)
    assert searches(ours)["generator"]["fallbacks"] == 0


@pytest.mark.parametrize(("kl", "reconstruction", "passes"), [(0.1, 0.0, 4), (0.0, 0.0, 4), (0.0, 0.1, None)])
def test_only_searches_that_are_measured_take_more_passes(kl, reconstruction, passes, monkeypatch):
    asked = []
    plain = View.loss
    monkeypatch.setattr(View, "loss", lambda self, x: asked.append(1) or plain(self, x))
    weights = Coefficients(kl=kl, reconstruction=reconstruction)
    ours = learner(generator_retrieval=retrieval(coefficients=weights))
    observed(ours, 0, *[1] * 7)
    found = searches(ours)["generator"]
    if passes is None:
        assert found["measured"] == 7
    else:
        assert (found["measured"], len(asked)) == (1, passes), "two sides, before and after, of one search"


def test_samples_for_the_generator_are_ordered_by_their_interference(monkeypatch):
    found, ahead = [], []
    plain_call, plain_view = LatentRetrieval.__call__, LatentRetrieval.view_ahead

    def noted(self, *arguments):
        found.append(plain_call(self, *arguments))
        return found[-1]

    def viewed(self, network, gradient):
        ahead.append(plain_view(self, network, gradient))
        return ahead[-1]

    ours = learner(generator_retrieval=retrieval())
    observed(ours, 0)
    ours.end_task()
    monkeypatch.setattr(LatentRetrieval, "__call__", noted)
    monkeypatch.setattr(LatentRetrieval, "view_ahead", viewed)
    retrieved = retrieve(ours, *batch(5)).generator
    (z, interference), generator = found[0], previous(ours)[1]
    with torch.no_grad():
        networks = generator, restored(ours.generator, ahead[0].tensors)
        before, after = (gaussian_kl(*network.encode(network.decode(z))) for network in networks)
        torch.testing.assert_close(interference, after - before, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(retrieved, generator.decode(z[interference.argsort(descending=True)]))
        assert not torch.allclose(retrieved, generator.decode(z))


def test_errors_of_samples_from_too_far_out_mention_the_search():
    far = LatentRetrieval(LatentSearch(steps=3, step_size=1e9), Coefficients(kl=0, entropy=0, diversity=1))
    torch.manual_seed(1)
    ours = learner(generator=VAE((6,), hidden=8, latent=3, reconstruction="gaussian"), classifier_retrieval=far)
    with pytest.raises(InvalidInput, match=r"found by a search in latent space.* step_size"):
        observed(ours, 0, *[1] * 20)


def test_errors_of_invalid_labels_do_not_mention_the_search():
    ours = learner(generator_retrieval=retrieval())
    observed(ours, 0, 1)
    with pytest.raises(InvalidInput) as raised:
        ours.observe(torch.rand(2, 6), torch.tensor([0, 7]), 1)
    assert "step_size" not in str(raised.value)


class Masked(nn.Module):
    """Gives one class a logit of −∞."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 4)

    def forward(self, x):
        return self.inner(x).index_fill(1, torch.tensor([3]), -torch.inf)


@pytest.mark.parametrize("searched", [False, True])
def test_a_classifier_may_have_impossible_classes(searched):
    both = {"classifier_retrieval": retrieval(), "generator_retrieval": retrieval()} if searched else {}
    ours = learner(Masked(), **both)
    for task in (0, 0, 1, 1):
        x, y = batch(task)
        step = ours.observe(x, y % 3, task)
    assert step.replayed_loss > 0
    assert all(report["fallbacks"] == 0 for report in searches(ours).values())
    assert all(bool(parameter.isfinite().all()) for parameter in ours.model.parameters())


def test_soft_cross_entropy_of_impossible_classes_by_hand():
    logits, q = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True), torch.tensor([[0.25, 0.75, 0.0]])
    by_hand = 0.25 * (1 + torch.tensor(1.0).exp()).log() + 0.75 * ((1 + torch.tensor(1.0).exp()).log() - 1)
    loss = soft_cross_entropy(logits, q)
    torch.testing.assert_close(loss, by_hand[None])
    (slope,) = torch.autograd.grad(loss.sum(), logits)
    torch.testing.assert_close(slope[:, :2], logits.softmax(1)[:, :2] - q[:, :2])
    assert slope[0, 2] == 0
    wanted = torch.tensor([[0.2, 0.7, 0.1]])
    assert soft_cross_entropy(logits, wanted).isinf().all(), "a wanted class is impossible"


def test_divergence_and_entropy_of_impossible_classes_by_hand():
    logits = torch.tensor([[0.0, 1.0, -torch.inf]], requires_grad=True)
    log_p, full = logits.log_softmax(1), torch.tensor([[0.0, 1.0]]).log_softmax(1)
    torch.testing.assert_close(entropy(log_p), entropy(full))
    for other in (torch.tensor([[0.5, 0.5, -torch.inf]]), torch.tensor([[0.5, 0.5, 0.0]])):
        value = divergence(log_p, other.log_softmax(1))
        by_hand = (full.exp() * (full - other.log_softmax(1)[:, :2])).sum(1)
        torch.testing.assert_close(value, by_hand)
        (slope,) = torch.autograd.grad((value + entropy(log_p)).sum(), logits, retain_graph=True)
        assert slope.isfinite().all()
    assert divergence(torch.zeros(1, 3).log_softmax(1), log_p).isinf().all()


@pytest.mark.parametrize("step_size", ["0.1", True, None, 0, -1.0, float("inf")])
def test_a_step_size_is_a_positive_number(step_size):
    with pytest.raises(InvalidInput, match="step_size"):
        LatentSearch(3, step_size)


def test_numpy_numbers_are_accepted():
    assert LatentSearch(np.int64(3), np.float32(0.1)).steps == 3
    assert Coefficients(kl=np.float32(1)).kl == 1
