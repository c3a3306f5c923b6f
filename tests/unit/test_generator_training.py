"""The generator's gradient by hand, against autograd's; and who is sent back to autograd."""

import pytest
import torch
from torch import nn

from rehearse.errors import InvalidInput
from rehearse.latent import Elbo
from rehearse.learners.generator_training import GeneratorTraining
from rehearse.nets import VAE

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
    passed = generator.pass_by_hand(x)
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
    torch.testing.assert_close(generator.pass_by_hand(x).gradient(weights, BETA), by_autograd(generator, x, weights))


class Counting(VAE):
    """A subclass that measures something else: its loss is doubled."""

    def loss(self, x):
        return Elbo(*(2 * part for part in super().loss(x)))


def unhandy():
    """Generators that autograd must see, by what is unusual about them."""
    hooked, replaced, patched, watched = vae(), vae(), vae(), vae()
    hooked.encoder[1].register_forward_hook(lambda module, inputs, output: 2 * output)
    replaced.decoder[1] = nn.Tanh()
    patched.loss = lambda x: Elbo(*(3 * part for part in VAE.loss(patched, x)))
    next(watched.parameters()).register_hook(lambda gradient: 5 * gradient)
    return {"hook": hooked, "layer": replaced, "loss": patched, "gradient": watched, "subclass": vae(Counting)}


@pytest.mark.parametrize("what", ["hook", "layer", "loss", "gradient", "subclass"])
def test_what_is_unusual_is_left_to_autograd(what):
    generator = unhandy()[what]
    x, _ = rows()
    weights = torch.full((5,), 1 / 5).double()
    training = GeneratorTraining(generator, torch.optim.Adam(generator.parameters()), None)
    torch.manual_seed(2)
    torch.testing.assert_close(dict(training.gradient(x, BETA)), by_autograd(generator, x, weights))


def test_frozen_parameters_stay_and_have_no_part_in_the_gradient():
    generator = vae()
    generator.statistics.requires_grad_(False)
    training = GeneratorTraining(generator, torch.optim.Adam(generator.parameters()), None)
    x, weights = rows()
    before = generator.statistics.weight.clone()
    gradient = training.step(x, weights, BETA, updates=2)
    assert not any(name.startswith("statistics") for name in gradient)
    assert torch.equal(before, generator.statistics.weight)


@pytest.mark.parametrize("clip", [None, 0.01])
def test_steps_by_hand_end_where_those_of_autograd_do(clip):
    x, weights = rows()
    ends = []
    for kind in (VAE, type("Plain", (VAE,), {"loss": lambda self, x: VAE.loss(self, x)})):  # the second by autograd
        generator = vae(kind, dropout=0.4)
        training = GeneratorTraining(generator, torch.optim.Adam(generator.parameters(), lr=0.01), clip)
        torch.manual_seed(3)
        training.step(x, weights, BETA, updates=5)
        ends.append(dict(generator.named_parameters()))
    torch.testing.assert_close(*ends)


def test_inputs_that_are_no_probabilities_are_refused():
    generator = vae()
    training = GeneratorTraining(generator, torch.optim.Adam(generator.parameters()), None)
    x, weights = rows()
    with pytest.raises(InvalidInput, match="inputs in \\[0, 1\\]"):
        training.step(2 * x, weights, BETA, updates=3)


def test_a_loss_that_is_no_number_is_refused():
    generator = vae(reconstruction="gaussian")
    training = GeneratorTraining(generator, torch.optim.Adam(generator.parameters()), None)
    x, weights = rows()
    with pytest.raises(InvalidInput, match="the loss is"):
        training.step(x * 1e200, weights, BETA, updates=1)
