"""Generative replay: invalid options, generators and states; what preparation and measurements leave alone."""

import copy

import pytest
import torch
from generative_learner import batch, learner, observed, retrieval

from rehearse.errors import CheckpointError, InvalidInput, InvalidType
from rehearse.lab.measurements import generator_losses, imagine, reconstruct
from rehearse.latent import Elbo, LatentSearch
from rehearse.learners import Coefficients, GenerativeReplay, LatentRetrieval
from rehearse.nets import MLP, VAE, GatedMLP
from rehearse.network import prepare_unit
from sameness import assert_same, frozen


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classifier_retrieval": LatentSearch()}, "retrieved by a LatentRetrieval"),
        ({"generator_retrieval": 3}, "retrieved by a LatentRetrieval"),
        ({"classifier_retrieval": retrieval(coefficients=Coefficients(reconstruction=1.0))}, "reconstructs nothing"),
        ({"reuse": "no"}, "reuse is 'no'"),
    ],
)
def test_invalid_generative_retrievals(options, words):
    with pytest.raises((InvalidInput, InvalidType), match=words):
        learner(**options)


def test_two_networks_need_a_search_each():
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
        (WrongWidth, r"decode returns \(2, 5\) for inputs of shape \(2, 6\)"),
        (OneCode, "encode must return a tuple of a mean and a log-variance"),
        (MeanLoss, "loss must return a tuple of reconstruction and KL, one value per sample"),
        (Detached, "no gradient on to z"),
    ],
)
def test_a_generator_that_breaks_the_protocol_raises_at_the_first_batch(kind, words):
    ours = learner(generator=kind((6,), hidden=8, latent=3), classifier_retrieval=retrieval())
    before = frozen(ours.state_dict())
    with pytest.raises(InvalidInput, match=words):
        observed(ours, 0)
    assert_same(ours.state_dict(), before)


class NotFinite(VAE):
    def decode(self, z):
        return super().decode(z) / 0


class Lists(VAE):
    def encode(self, x):
        return list(super().encode(x))


@pytest.mark.parametrize(("kind", "words"), [(NotFinite, "decode returns numbers that are not"), (Lists, "a tuple of")])
def test_a_generator_that_returns_something_else_raises_at_the_first_batch(kind, words):
    with pytest.raises(InvalidInput, match=words):
        observed(learner(generator=kind((6,), hidden=8, latent=3)), 0)


def test_random_preparation_leaves_torchs_random_state_alone():
    def prepare(x):
        return prepare_unit(x) + 0.01 * torch.rand(x.shape)

    ours = learner(prepare=prepare, generator=VAE((6,), hidden=8, latent=3, reconstruction="gaussian"))
    before = torch.get_rng_state()
    observed(ours, 0, 0, 1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_state_of_another_optimizer_is_refused():
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
    with pytest.raises(CheckpointError, match="the state is of Adam, this optimizer is SGD"):
        other.load_state_dict(adam.state_dict())
    observed(other, 0, 1)


def test_a_state_with_a_search_does_not_fit_a_learner_without():
    searching, plain = learner(classifier_retrieval=retrieval()), learner()
    for one, other in ((searching, plain), (plain, searching)):
        with pytest.raises(CheckpointError, match="searches for its"):
            one.load_state_dict(other.state_dict())


@pytest.mark.parametrize("counts", [[-5, 3], ["7", "8"], [2.9, 1.5], [True, False], [7]])
def test_counts_that_are_none_are_refused(counts):
    ours = learner()
    state = ours.state_dict()
    state["own"]["counts"] = counts
    with pytest.raises(CheckpointError, match="counts"):
        ours.load_state_dict(state)


def test_a_head_that_cannot_grow_leaves_the_stale_gradient():
    ours = learner(GatedMLP(6, 8, 4, dropout=0.0), classifier_retrieval=retrieval(gradient="stale"))
    observed(ours, 0, 1)
    with pytest.raises(InvalidInput):
        ours.grow(6)
    assert ours.past.gradients[0] is not None


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


def test_non_persistent_buffers_of_a_generator_are_saved_and_restored():
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
    assert_same(ours.state_dict(), again.state_dict())


def test_generator_losses_of_empty_and_of_invalid_inputs():
    ours = learner()
    assert len(generator_losses(ours, torch.rand(0, 6)).kl) == 0
    with pytest.raises(InvalidInput, match="one tensor of real numbers"):
        generator_losses(ours, (torch.rand(2, 6), torch.rand(2, 6)))


def test_generator_losses_are_the_same_every_time_with_random_preparation():
    ours = learner(prepare=lambda x: (x + 0.1 * torch.rand_like(x)).clamp(0, 1))
    observed(ours, 0)
    x, everybodys = batch(9)[0], torch.get_rng_state()
    assert torch.equal(generator_losses(ours, x).kl, generator_losses(ours, x).kl)
    assert torch.equal(torch.get_rng_state(), everybodys)


def test_measurements_check_their_inputs():
    ours = learner()
    observed(ours, 0)
    for ask in (generator_losses, reconstruct):
        with pytest.raises(InvalidInput, match=r"the generator's (loss|encode) cannot take"):
            ask(ours, torch.rand(3, 5))
    for samples in (-1, 0, 2.5):
        with pytest.raises(InvalidInput, match="samples is"):
            imagine(ours, samples)


def test_errors_name_the_network_of_a_wrong_optimizer():
    classifier, generator = MLP(6, (8,), 4), VAE((6,), hidden=8, latent=3)
    sgd = torch.optim.SGD(classifier.parameters(), lr=0.1)
    with pytest.raises(InvalidInput, match=r"of the generator holds no .* build it from generator\.parameters"):
        GenerativeReplay(classifier, sgd, generator, sgd)
    with pytest.raises(InvalidType, match=r"the generator must be an nn\.Module"):
        GenerativeReplay(classifier, sgd, VAE, sgd)


# -------------------------------------------------------------------------------------------- the generator's training


def test_an_assigned_generator_optimizer_is_used():
    ours = learner()
    ours.generator_optimizer = torch.optim.SGD(ours.generator.parameters(), lr=0.0)
    before = frozen(dict(ours.generator.state_dict()))
    observed(ours, 0, 1)
    assert_same(dict(ours.generator.state_dict()), before)


@pytest.mark.parametrize("updates", [1, 3])
def test_frozen_parameters_of_a_generator_do_not_move(updates):
    ours = learner(updates=updates)
    ours.generator.statistics.requires_grad_(False)
    before = frozen(dict(ours.generator.state_dict()))
    observed(ours, 0, 1)
    after = dict(ours.generator.state_dict())
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved == {name for name in after if not name.startswith("statistics")}


@pytest.mark.parametrize(("scale", "words"), [(2.0, r"inputs in \[0, 1\]"), (1e30, "not finite")])
def test_inputs_beyond_the_generator_raise_and_change_nothing(scale, words):
    kind = "bernoulli" if scale == 2 else "gaussian"
    ours = learner(generator=VAE((6,), hidden=8, latent=3, reconstruction=kind), updates=3)
    before = frozen(ours.state_dict())
    x, y = batch(0)
    with pytest.raises(InvalidInput, match=words):
        ours.observe(scale * x, y, task=0)
    assert_same(ours.state_dict(), before)
