"""What a second reading of the generative learner found: whatever can be put in is taken as it is meant, or refused."""

import copy

import pytest
import torch
from test_generative import batch, everything, learner, observed, same
from torch import nn

from rehearse.compute import prepare_unit
from rehearse.errors import CheckpointError, InvalidInput, InvalidType
from rehearse.latent import Elbo, LatentSearch
from rehearse.learners import Coefficients, GenerativeReplay, LatentRetrieval
from rehearse.learners.generative_objectives import generator_objective
from rehearse.learners.same_rows import can_stay
from rehearse.learners.view import View
from rehearse.nets import MLP, VAE, GatedMLP


def retrieval(**options):
    return LatentRetrieval(LatentSearch(steps=2), **options)


# --------------------------------------------------------------------------------- several steps on the same rows


class Scaled(GatedMLP):
    def forward(self, x):
        return super().forward((x - 0.5) / 0.25)


class Between(nn.Module):
    """Layers that happen to bear the names, with something between them."""

    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x):
        return self.rest(self.first(x).relu())


def hooked(model):
    model.hidden.register_forward_hook(lambda *arguments: None)
    return model


def watched(model):
    model.hidden.weight.register_hook(lambda gradient: 0 * gradient)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scaled(6, 8, 4, dropout=0.0),
        Between,
        lambda: hooked(GatedMLP(6, 8, 4)),
        lambda: watched(GatedMLP(6, 8, 4)),
    ],
)
def test_only_a_classifier_that_says_how_it_splits_is_split(make):
    model = make()
    rows, optimizer = torch.rand(3, 6), torch.optim.SGD(model.parameters(), lr=0.1)
    assert not can_stay(model, optimizer, rows)
    assert can_stay(GatedMLP(6, 8, 4), torch.optim.SGD(GatedMLP(6, 8, 4).parameters(), lr=0.1), rows) is False
    plain = GatedMLP(6, 8, 4)
    assert can_stay(plain, torch.optim.SGD(plain.parameters(), lr=0.1), rows)


def test_an_optimiser_that_is_watched_takes_its_steps_itself():
    model = GatedMLP(6, 8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.register_step_pre_hook(lambda *arguments: None)
    assert not can_stay(model, optimizer, torch.rand(3, 6))


# -------------------------------------------------------------------------------------------------------- searching


def test_the_optimisers_real_step_is_foreseen_as_it_will_be_clipped():
    ours = learner(classifier_retrieval=retrieval(virtual_step="optimizer"), clip=1e-3)
    observed(ours, 0, 0)
    gradient = {name: torch.ones_like(value) for name, value in ours.model.named_parameters()}
    foreseen = ours.classifier_retrieval.foresee(ours.model, ours.optimizer, gradient, ours.clip)
    steps = [foreseen[name] - value for name, value in ours.model.named_parameters()]
    length = torch.linalg.vector_norm(torch.cat([step.flatten() for step in steps])).item()
    assert length == pytest.approx(0.1 * 1e-3, rel=1e-2)


@pytest.mark.parametrize("decode", ["own", "previous"])
def test_a_generator_that_does_not_move_is_not_interfered_with(decode):
    torch.manual_seed(0)
    generator = VAE((6,), hidden=8, latent=3).eval()
    classifier = MLP(6, (8,), 4).eval()
    objective = generator_objective(
        Coefficients(kl=1.0, reconstruction=1.0), View(classifier), View(generator), View(generator), decode
    )
    points = torch.randn(7, 3)
    assert torch.equal(objective.measure(points)[0], torch.zeros(7))


def test_without_steps_a_search_changes_nothing_that_it_measures():
    search = LatentRetrieval(LatentSearch(steps=0), Coefficients(kl=1.0, reconstruction=1.0))
    ours = learner(generator_retrieval=search)
    observed(ours, 0, 0, 1, 1, 1)
    told = ours.search_report()["generator"]
    assert told["searches"] == 3
    assert told["interference_before"] == pytest.approx(told["interference_after"], abs=1e-6)


class Exploding(VAE):
    """Far from the prior it makes no numbers any more."""

    def decode(self, z):
        return super().decode(z) * torch.where(z.detach().abs().amax() > 1e3, torch.inf, 1.0)


def test_points_that_the_networks_make_no_numbers_of_are_not_replayed():
    far = LatentRetrieval(LatentSearch(steps=2, step_size=1e6), Coefficients(diversity=1.0))
    ours = learner(generator=Exploding((6,), hidden=8, latent=3), classifier_retrieval=far)
    step = observed(ours, 0, 0, 1, 1)
    assert step.recalled is not None
    assert bool(step.recalled.x.isfinite().all())
    told = ours.search_report()["classifier"]
    assert (told["searches"], told["fallbacks"]) == (2, 2)


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classifier_retrieval": LatentSearch()}, "retrieved by a LatentRetrieval"),
        ({"generator_retrieval": 3}, "retrieved by a LatentRetrieval"),
        ({"classifier_retrieval": retrieval(coefficients=Coefficients(reconstruction=1.0))}, "reconstructs nothing"),
        ({"reuse": "no"}, "reuse is 'no'"),
    ],
)
def test_what_cannot_be_searched_with_is_refused(options, words):
    with pytest.raises((InvalidInput, InvalidType), match=words):
        learner(**options)


def test_one_search_for_two_networks_is_refused():
    shared = retrieval()
    with pytest.raises(InvalidInput, match="a retrieval and a search each"):
        learner(classifier_retrieval=shared, generator_retrieval=shared)
    with pytest.raises(InvalidType, match="made of a LatentSearch"):
        LatentRetrieval(Coefficients())


class WrongWidth(VAE):
    def decode(self, z):
        return super().decode(z)[:, :-1]


class OneCode(VAE):
    def encode(self, x):
        return super().encode(x)[0]


class MeanLoss(VAE):
    def loss(self, x):
        return Elbo(*(part.mean() for part in super().loss(x)))


class Detached(VAE):
    def decode(self, z):
        return super().decode(z.detach()).detach()


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (WrongWidth, r"decode gives \(2, 5\); inputs have shape \(2, 6\)"),
        (OneCode, "encode must give a mean and a log-variance"),
        (MeanLoss, "loss must give reconstruction and KL, one value a row each"),
        (Detached, "no gradient on to z"),
    ],
)
def test_a_generator_that_does_not_keep_its_word_is_refused_at_the_first_batch(kind, words):
    ours = learner(generator=kind((6,), hidden=8, latent=3), classifier_retrieval=retrieval())
    before = everything(ours)
    with pytest.raises(InvalidInput, match=words):
        observed(ours, 0)
    assert same(everything(ours), before)


def test_preparing_at_random_moves_nobodys_random_numbers():
    def prepare(x):
        return prepare_unit(x) + 0.01 * torch.rand(x.shape)

    ours = learner(prepare=prepare, generator=VAE((6,), hidden=8, latent=3, reconstruction="gaussian"))
    before = torch.get_rng_state()
    observed(ours, 0, 0, 1)
    assert torch.equal(torch.get_rng_state(), before)


# ------------------------------------------------------------------------------------------------------------ state


def test_a_state_of_another_optimiser_is_refused():
    classifier, generator = MLP(6, (8,), 4), VAE((6,), hidden=8, latent=3)
    adam = GenerativeReplay(
        classifier,
        torch.optim.SGD(classifier.parameters(), lr=0.1),
        generator,
        torch.optim.Adam(generator.parameters()),
        memories=2,
    )
    observed(adam, 0, 1)
    other = learner()
    with pytest.raises(CheckpointError, match="the state is of Adam, this optimiser is SGD"):
        other.load_state_dict(adam.state_dict())
    observed(other, 0, 1)


def test_a_state_with_a_search_does_not_fit_a_learner_without():
    searching, plain = learner(classifier_retrieval=retrieval()), learner()
    for one, other in ((searching, plain), (plain, searching)):
        with pytest.raises(CheckpointError, match="searches for its"):
            one.load_state_dict(other.state_dict())


def test_a_head_that_cannot_grow_leaves_the_stale_gradient():
    ours = learner(GatedMLP(6, 8, 4, dropout=0.0), classifier_retrieval=retrieval(gradient="stale"))
    observed(ours, 0, 1)
    with pytest.raises(InvalidInput):
        ours.grow(6)
    assert "classifier" in ours._last_gradients


class Counting(VAE):
    """A generator with a buffer that torch does not save, on which its passes depend."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.register_buffer("passes", torch.zeros(()), persistent=False)

    def loss(self, x):
        if self.training:
            self.passes += 1
        reconstruction, kl = super().loss(x)
        return Elbo(reconstruction * (1 + 0.01 * self.passes), kl)


def test_buffers_that_torch_does_not_save_are_saved_and_put_back():
    ours = learner(generator=Counting((6,), hidden=8, latent=3))
    observed(ours, 0, 0, 1)
    saved = copy.deepcopy(ours.state_dict())
    passes = ours.generator.passes.item()
    with pytest.raises(InvalidInput):
        ours.observe(torch.full((2, 6), 2.0), torch.tensor([0, 1]), task=1)  # no Bernoulli input
    assert ours.generator.passes.item() == passes
    again = learner(generator=Counting((6,), hidden=8, latent=3))
    again.load_state_dict(saved)
    for one in (ours, again):
        one.observe(*batch(9), task=1)
    assert same(everything(ours), everything(again))


def test_the_generators_losses_of_nothing_and_of_what_it_cannot_take():
    ours = learner()
    assert len(ours.generator_losses(torch.rand(0, 6)).kl) == 0
    with pytest.raises(InvalidInput, match="one tensor of real numbers"):
        ours.generator_losses((torch.rand(2, 6), torch.rand(2, 6)))
