"""The generator's gradient by hand, against autograd's; and who is sent back to autograd."""

import pytest
import torch
from rehearse.learners.generator_training import GeneratorTraining, equal_weights
from torch import nn

from rehearse.errors import InvalidInput
from rehearse.latent import Elbo
from rehearse.learners import GenerativeReplay
from rehearse.nets import VAE
from rehearse.nets.vae import VaePass

BETA = 0.3


def vae(kind=VAE, **options):
    torch.manual_seed(0)
    return kind((2, 3), hidden=7, latent=4, **options).double().train()


def rows(count=5):
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 2, 3, generator=generator).double(), torch.rand(count, generator=generator).double()


def by_autograd(generator, x, weights):
    torch.manual_seed(2)
    loss = (weights * generator.loss(x).total(BETA)).sum()
    names = [name for name, parameter in generator.named_parameters() if parameter.requires_grad]
    values = torch.autograd.grad(loss, [parameter for parameter in generator.parameters() if parameter.requires_grad])
    return dict(zip(names, values, strict=True))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("dropout", [0.0, 0.4])
@pytest.mark.parametrize("reconstruction", ["bernoulli", "gaussian"])
@pytest.mark.parametrize("kl", ["closed", "sampled"])
def test_a_pass_by_hand_gives_losses_and_gradient_of_the_plain_one(depth, dropout, reconstruction, kl):
    generator = vae(depth=depth, dropout=dropout, reconstruction=reconstruction, kl=kl, sigma=0.7)
    x, weights = rows()
    torch.manual_seed(2)
    passed = generator.by_hand()(x)
    after = torch.get_rng_state()
    found, losses = passed.gradient(weights, BETA), passed.losses()
    torch.testing.assert_close(found, by_autograd(generator, x, weights))
    assert torch.equal(after, torch.get_rng_state()), "other random numbers than the plain pass draws"
    torch.manual_seed(2)
    torch.testing.assert_close(losses, generator.loss(x))


def test_a_variance_that_is_held_up_gets_no_gradient():
    generator = vae().float()
    with torch.no_grad():
        generator.statistics.bias[4:] = -200  # softplus gives 0 there, and 0 has no logarithm
    x, weights = (value.float() for value in rows())
    torch.manual_seed(2)
    torch.testing.assert_close(generator.by_hand()(x).gradient(weights, BETA), by_autograd(generator, x, weights))


class Doubled(VAE):
    """A subclass that measures something else."""

    def loss(self, x):
        return Elbo(*(2 * part for part in super().loss(x)))


class Laplace(VAE):
    """A subclass that measures one part of the loss otherwise."""

    def _reconstruction_loss(self, x, output):
        return (x - output).abs().sum(1)


class Scaled(VAE):
    """A subclass with a parameter of its own."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.scale = nn.Parameter(torch.ones(()))

    def loss(self, x):
        return Elbo(*(self.scale * part for part in super().loss(x)))


class Bent(nn.Sequential):
    """A sequence that does more than one layer after the other."""

    def forward(self, x):
        return super().forward(x).tanh()


class Holder(nn.Module):
    """No sequence at all, though it holds the same layers."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = layers[-1]
        self.first = layers[0]

    def forward(self, x):
        return self.layers(self.first(x)).tanh()


def unusual(what):
    """A generator that autograd must see."""
    kinds = {"subclass": Doubled, "part": Laplace, "parameter": Scaled}
    generator = vae(kinds.get(what, VAE), depth=2)
    if what == "hook":
        generator.encoder[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    elif what == "layer":
        generator.decoder[1] = nn.Tanh()
    elif what == "loss":
        generator.loss = lambda x: Elbo(*(3 * part for part in VAE.loss(generator, x)))
    elif what == "gradient":
        next(generator.parameters()).register_hook(lambda gradient: 5 * gradient)
    elif what == "sequence":
        generator.encoder = Bent(*generator.encoder)
    elif what == "module":
        generator.encoder = Holder(nn.Flatten(), nn.Linear(6, 7)).double()
    elif what == "twice":
        generator.encoder[2] = generator.encoder[5]  # one ReLU in two places
    elif what == "tied":
        generator.decoder[3].weight = generator.encoder[4].weight
    elif what == "tied and more":
        generator.decoder[3].weight = generator.encoder[4].weight
        generator.note = nn.Parameter(torch.zeros(()), requires_grad=False)
    elif what == "flat":
        generator.encoder[0] = nn.Flatten(0, 1)
        generator.encoder[1] = nn.Linear(3, 7).double()
    return generator


@pytest.mark.parametrize(
    "what",
    [
        "subclass",
        "part",
        "parameter",
        "hook",
        "layer",
        "loss",
        "gradient",
        "sequence",
        "module",
        "twice",
        "tied",
        "tied and more",
    ],
)
def test_what_is_unusual_gives_what_autograd_gives(what):
    generator = unusual(what)
    x, _ = rows()
    weights = torch.full((5,), 1 / 5).double()
    training = GeneratorTraining(generator, torch.optim.Adam(generator.parameters()), None)
    torch.manual_seed(2)
    torch.testing.assert_close(dict(training.gradient(x, BETA)), by_autograd(generator, x, weights))


def test_rows_that_are_flattened_otherwise_are_not_passed_by_hand():
    assert vae().by_hand() is not None
    assert unusual("flat").by_hand() is None


def test_the_plain_generator_needs_no_autograd(monkeypatch):
    generator = vae()
    training = GeneratorTraining(generator, torch.optim.Adam(generator.parameters()), None)
    monkeypatch.setattr(torch.autograd, "grad", None)
    training.step(*rows(), BETA, updates=1)


def test_the_learner_steps_with_the_optimiser_that_it_has_now():
    classifier, generator = nn.Linear(6, 2), VAE((6,), hidden=7, latent=4)
    sgd, adam = torch.optim.SGD(classifier.parameters(), lr=0.1), torch.optim.Adam(generator.parameters())
    learner = GenerativeReplay(classifier, sgd, generator, adam)
    learner.generator_optimizer = torch.optim.SGD(generator.parameters(), lr=0.0)
    before = [parameter.clone() for parameter in generator.parameters()]
    learner.observe(torch.rand(4, 6), torch.tensor([0, 1, 0, 1]))
    torch.testing.assert_close(list(generator.parameters()), before, rtol=0, atol=0)


def by_hand_passes(monkeypatch):
    """A list that grows whenever a gradient is made by hand."""
    passed, plain = [], VaePass.gradient
    monkeypatch.setattr(VaePass, "gradient", lambda *rest: (passed.append(1), plain(*rest))[1])
    return passed


def test_frozen_parameters_stay_and_have_no_part_in_the_gradient(monkeypatch):
    generator = vae()
    generator.statistics.requires_grad_(False)
    training = GeneratorTraining(generator, torch.optim.Adam(generator.parameters()), None)
    x, weights = rows()
    before = generator.statistics.weight.clone()
    torch.manual_seed(2)
    expected = by_autograd(generator, x, weights)
    passed = by_hand_passes(monkeypatch)
    torch.manual_seed(2)
    torch.testing.assert_close(dict(training.step(x, weights, BETA, updates=1)), expected)
    assert passed
    assert torch.equal(before, generator.statistics.weight)


@pytest.mark.parametrize("clip", [None, 0.01])
def test_steps_by_hand_end_where_those_of_autograd_do(clip, monkeypatch):
    x, weights = rows()
    ends, passed = [], by_hand_passes(monkeypatch)
    for kind in (VAE, type("Plain", (VAE,), {"loss": lambda self, x: VAE.loss(self, x)})):  # the second by autograd
        generator = vae(kind, dropout=0.4)
        training = GeneratorTraining(generator, torch.optim.Adam(generator.parameters(), lr=0.01), clip)
        torch.manual_seed(3)
        training.step(x, weights, BETA, updates=5)
        ends.append(dict(generator.named_parameters()))
    assert len(passed) == 5
    torch.testing.assert_close(*ends)


def test_inputs_that_are_no_probabilities_are_refused_before_anything_moves():
    generator = vae()
    training = GeneratorTraining(generator, torch.optim.Adam(generator.parameters()), None)
    x, weights = rows()
    before = [parameter.clone() for parameter in generator.parameters()]
    with pytest.raises(InvalidInput, match="inputs in \\[0, 1\\]"):
        training.step(2 * x, weights, BETA, updates=3)
    torch.testing.assert_close(list(generator.parameters()), before, rtol=0, atol=0)


def test_rows_of_half_precision_have_weights_of_single_precision():
    weights = equal_weights(torch.rand(10, 3).bfloat16())
    assert weights.dtype == torch.float32
    assert weights.sum().item() == pytest.approx(1)


def test_a_loss_that_is_no_number_is_refused():
    generator = vae(reconstruction="gaussian")
    training = GeneratorTraining(generator, torch.optim.Adam(generator.parameters()), None)
    x, weights = rows()
    with pytest.raises(InvalidInput, match="the loss is"):
        training.step(x * 1e200, weights, BETA, updates=1)
