"""Each term of Eq. 2 and 3 against values computed by hand, and the latent search against its own objective."""

import math
from itertools import combinations

import pytest
import torch
from generative_learner import view
from torch import nn

from rehearse.errors import InvalidInput
from rehearse.latent import Elbo, LatentSearch, divergence, entropy, gaussian_kl
from rehearse.learners import Coefficients, LatentRetrieval
from rehearse.learners.generative.objectives import (
    Objective,
    classifier_objective,
    diversity,
    generator_objective,
    shell,
)
from rehearse.nets import VAE, GatedMLP
from rehearse.network import NamedGradient, Network

NOTHING = Coefficients(kl=0, reconstruction=0, entropy=0, diversity=0, shell=0)


def test_entropy_by_hand():
    p = torch.tensor([[0.5, 0.5], [0.25, 0.75]])
    by_hand = [math.log(2), -(0.25 * math.log(0.25) + 0.75 * math.log(0.75))]
    torch.testing.assert_close(entropy(p.log()), torch.tensor(by_hand))


def test_the_entropy_of_a_confident_classifier_is_zero():
    confident = torch.tensor([[1000.0, 0.0, -500.0]], requires_grad=True)
    value = entropy(confident.log_softmax(1))
    assert value.item() == 0
    (slope,) = torch.autograd.grad(value.sum(), confident)
    assert torch.equal(slope, torch.zeros(1, 3))


def test_divergence_by_hand():
    p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.9, 0.1]])
    by_hand = 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)
    assert divergence(p.log(), q.log()).item() == pytest.approx(by_hand)
    assert divergence(p.log(), p.log()).item() == 0


def test_new_classes_are_impossible_before():
    p, q = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.4, 0.4, 0.2]])
    assert divergence(p.log(), q.log()).item() == pytest.approx(math.log(0.5 / 0.4))


def test_diversity_is_over_all_pairs():
    z = torch.randn(7, 3)
    pairs = sum((z[i] - z[j]).square().sum() / 3 for i, j in combinations(range(7), 2))
    torch.testing.assert_close(diversity(z), pairs / 6)


def test_the_diversity_of_identical_points_is_zero():
    assert diversity(torch.tensor([[1.5, -2.0]]).repeat(8, 1)).item() == 0
    assert diversity(torch.randn(1, 5)).item() == 0


def test_shell_by_hand():
    z = torch.tensor([[3.0, 4.0, 0.0, 0.0], [2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(shell(z), torch.tensor([9.0, 0.0, 4.0]))


# ----------------------------------------------------------------------------------------- networks with known values


class Doubling(nn.Module):
    """A generator whose numbers are known: x = 2z, q(z|x) = N(x, s²), reconstruction = a · Σx."""

    latent = 2

    def __init__(self, spread: float = 1.0, scale: float = 2.0, slope: float = 1.0) -> None:
        super().__init__()
        self.spread, self.scale, self.slope = (nn.Parameter(torch.tensor(v)) for v in (spread, scale, slope))

    def encode(self, x):
        return x, torch.zeros_like(x) + 2 * self.spread.log()

    def decode(self, z):
        return self.scale * z

    def loss(self, x):
        return Elbo(self.slope * x.sum(1), gaussian_kl(*self.encode(x)))


def linear(weight):
    layer = nn.Linear(2, 2, bias=False)
    layer.weight = nn.Parameter(torch.tensor(weight))
    return layer


def test_the_classifiers_objective_term_by_term():
    z = torch.tensor([[0.5, -0.25], [1.0, 0.0]])
    before, after = linear([[1.0, 0.0], [0.0, 1.0]]), linear([[0.0, 1.0], [1.0, 0.0]])
    p, q = before(2 * z).softmax(1), after(2 * z).softmax(1)
    kl, uncertainty = (p * (p / q).log()).sum(1), -(p * p.log()).sum(1)

    def objective(**weights):
        coefficients = Coefficients(**{"kl": 0, "entropy": 0, "diversity": 0, "shell": 0} | weights)
        return classifier_objective(coefficients, view(Doubling()), view(before), view(after))

    torch.testing.assert_close(objective(kl=3.0).scores(z), 3 * kl)
    torch.testing.assert_close(objective(entropy=2.0).scores(z), -2 * uncertainty)
    torch.testing.assert_close(objective(shell=0.5).scores(z), -0.5 * shell(z))
    torch.testing.assert_close(objective(diversity=4.0)(z), 4 * diversity(z))
    whole = objective(kl=0.1, entropy=0.9, diversity=1.0, shell=2.0)
    torch.testing.assert_close(whole(z), (0.1 * kl - 0.9 * uncertainty - 2 * shell(z)).sum() + diversity(z))
    interference, measured = objective().measure(z)
    torch.testing.assert_close(interference, kl)
    torch.testing.assert_close(measured, uncertainty)


@pytest.mark.parametrize("decode", ["own", "previous"])
def test_the_generators_objective_term_by_term(decode):
    z = torch.tensor([[0.5, -0.25], [1.0, 0.0]])
    before, after = Doubling(1.0, 2.0, 1.0), Doubling(2.0, 3.0, 1.5)
    classifier = linear([[1.0, 0.0], [0.0, 1.0]])
    x_before = 2 * z
    x_after = 3 * z if decode == "own" else x_before
    reconstruction = 1.5 * x_after.sum(1) - x_before.sum(1)
    kl = 0.5 * (x_after.square() + 4 - 1 - math.log(4)).sum(1) - 0.5 * x_before.square().sum(1)
    p = classifier(x_before).softmax(1)
    uncertainty = -(p * p.log()).sum(1)

    def objective(**weights):
        coefficients = Coefficients(**{"kl": 0, "entropy": 0, "diversity": 0, "shell": 0} | weights)
        return generator_objective(coefficients, view(classifier), view(before), view(after), decode)

    torch.testing.assert_close(objective(kl=3.0).scores(z), 3 * kl)
    torch.testing.assert_close(objective(reconstruction=2.0).scores(z), 2 * reconstruction)
    torch.testing.assert_close(objective(kl=1.0, reconstruction=2.0).scores(z), kl + 2 * reconstruction)
    torch.testing.assert_close(objective(entropy=0.5).scores(z), -0.5 * uncertainty)
    interference, measured = objective().measure(z)
    torch.testing.assert_close(interference, kl + reconstruction)
    torch.testing.assert_close(measured, uncertainty)


def test_terms_of_weight_zero_are_not_computed():
    generator, before, after = view(Doubling()), view(linear([[1.0, 0.0], [0.0, 1.0]])), view(Doubling())
    z = torch.randn(4, 2)
    classifier_objective(Coefficients(kl=0), generator, before, after)(z)
    assert (generator.network.samples_passed, before.network.samples_passed, after.network.samples_passed) == (4, 4, 0)
    generator_objective(NOTHING, before, generator, after, "own")(z)
    assert (generator.network.samples_passed, before.network.samples_passed, after.network.samples_passed) == (4, 4, 0)
    generator_objective(Coefficients(entropy=0), before, generator, after, "previous")(z)
    assert (generator.network.samples_passed, before.network.samples_passed, after.network.samples_passed) == (12, 4, 4)


def test_an_objective_without_terms_moves_nothing():
    objective = generator_objective(NOTHING, view(Doubling()), view(Doubling()), view(Doubling()), "own")
    start = torch.randn(3, 2)
    assert torch.equal(LatentSearch()(objective, start), start)


def test_a_view_uses_other_tensors_and_leaves_the_network_alone():
    network = linear([[1.0, 0.0], [0.0, 1.0]])
    x = torch.randn(3, 2)
    seen = view(network, {"weight": torch.tensor([[0.0, 1.0], [1.0, 0.0]])}).classify(x)
    torch.testing.assert_close(seen, x.flip(1).log_softmax(1))
    assert torch.equal(network.weight, torch.eye(2))


@pytest.fixture
def networks():
    torch.manual_seed(0)
    return [view(n) for n in (VAE((8,), hidden=16, latent=4), GatedMLP(8, 16, 3), GatedMLP(8, 16, 3))]


@pytest.mark.parametrize("coefficients", [Coefficients(), Coefficients(kl=1.0, entropy=0.0, shell=0.5)])
def test_the_search_increases_its_own_objective(networks, coefficients):
    objective = classifier_objective(coefficients, *networks)
    z = torch.randn(20, 4)
    before = objective(z).item()
    for _ in range(3):
        found = LatentSearch(steps=5, step_size=0.01)(objective, z)
        assert objective(found).item() > before
        z, before = found, objective(found).item()


def test_the_search_of_the_generator_increases_its_own_objective(networks):
    torch.manual_seed(1)
    other = view(VAE((8,), hidden=16, latent=4))
    objective = generator_objective(Coefficients(kl=1.0), networks[1], networks[0], other, "own")
    z = torch.randn(20, 4)
    assert objective(LatentSearch(steps=5, step_size=0.01)(objective, z)).item() > objective(z).item()


def test_without_diversity_points_are_searched_independently(networks):
    objective = classifier_objective(Coefficients(diversity=0), *networks)
    z = torch.randn(5, 4)
    together = LatentSearch(steps=3)(objective, z)
    alone = torch.cat([LatentSearch(steps=3)(objective, z[i : i + 1]) for i in range(5)])
    torch.testing.assert_close(together, alone)


# --------------------------------------------------------------------------------------------------------- retrieval


def test_measurements_before_and_after_are_averaged(networks):
    retrieval = LatentRetrieval(LatentSearch(steps=5), Coefficients(kl=1.0, entropy=0.0, diversity=0.0))
    starts, ends = [], []
    for seed in range(3):
        torch.manual_seed(seed)
        objective = classifier_objective(retrieval.coefficients, *networks)
        z = torch.randn(6, 4)
        found, interference = retrieval(objective, 6, lambda points, z=z: z[:points], torch.randn)
        starts.append(objective.measure(z)[0].mean())
        ends.append(objective.measure(found)[0].mean())
        torch.testing.assert_close(interference, objective.measure(found)[0])
    report = retrieval.report()
    assert report["searches"] == 3
    assert report["fallbacks"] == 0
    assert report["interference_before"] == pytest.approx(torch.stack(starts).mean().item(), rel=1e-5)
    assert report["interference_after"] == pytest.approx(torch.stack(ends).mean().item(), rel=1e-5)
    assert report["interference_after"] > report["interference_before"]


def test_a_failed_search_falls_back_to_the_prior_and_is_counted():
    def terms(z, wanted):
        return {"kl": z.sum(1) / 0, "entropy": z.sum(1)}

    retrieval = LatentRetrieval(LatentSearch(steps=2), Coefficients(diversity=0))
    plain = torch.full((4, 2), 7.0)
    found, _ = retrieval(
        Objective(retrieval.coefficients, terms, ("kl",)), 4, lambda points: torch.ones(points, 2), lambda _: plain
    )
    assert torch.equal(found, plain)
    assert retrieval.report() == {
        "searches": 1,
        "fallbacks": 1,
        "measured": 0,
        "interference_before": None,
        "entropy_before": None,
        "interference_after": None,
        "entropy_after": None,
    }


def test_ranking_keeps_the_best_of_many(networks):
    retrieval = LatentRetrieval(coefficients=Coefficients(kl=1.0, entropy=0.0), ranking=10)
    objective = classifier_objective(retrieval.coefficients, *networks)
    drawn = torch.randn(50, 4)
    found, _ = retrieval(objective, 5, lambda points: drawn[:points], torch.randn)
    best = sorted(objective.scores(drawn).tolist(), reverse=True)[:5]
    assert objective.scores(found).tolist() == pytest.approx(best)


@pytest.mark.parametrize(
    "wrong",
    [
        {"init": "?"},
        {"gradient": "?"},
        {"reference": "?"},
        {"decode": "?"},
        {"virtual_step": "?"},
        {"rate": 0.0},
        {"ranking": 0},
    ],
)
def test_invalid_retrievals(wrong):
    with pytest.raises(InvalidInput):
        LatentRetrieval(**wrong)
    with pytest.raises(InvalidInput):
        Coefficients(kl=math.nan)


def network(optimizer):
    layer = linear([[1.0, 2.0], [3.0, 4.0]])
    return layer, Network(layer, optimizer(layer.parameters()))


def test_the_virtual_step_with_the_optimizers_rate_and_with_another():
    layer, own = network(lambda parameters: torch.optim.Adam(parameters, lr=0.25))
    gradient = NamedGradient(weight=torch.ones(2, 2))
    for rate, expected in ((None, 0.25), (0.5, 0.5)):
        ahead = LatentRetrieval(rate=rate).view_ahead(own, gradient).tensors["weight"]
        torch.testing.assert_close(ahead, layer.weight - expected)


def test_the_optimizers_virtual_step_is_what_adam_then_does():
    layer, own = network(lambda parameters: torch.optim.Adam(parameters, lr=0.25, fused=True))
    for _ in range(3):
        layer.weight.grad = torch.randn(2, 2)
        own.optimizer.step()
    gradient, before = NamedGradient(weight=torch.randn(2, 2)), layer.weight.detach().clone()
    ahead = LatentRetrieval(virtual_step="optimizer").view_ahead(own, gradient).tensors["weight"]
    assert torch.equal(layer.weight, before)
    layer.weight.grad = gradient["weight"]
    own.optimizer.step()
    assert torch.equal(ahead, layer.weight)
