"""The VAE and the gated classifier: sizes as published, values by hand."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rehearse.errors import InvalidInput
from rehearse.lab.networks import make_network
from rehearse.latent import Generator
from rehearse.nets import VAE, GatedMLP
from rehearse.nets.dropout import Dropout


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("depth", "hidden", "latent", "count"),
    [(1, 128, 50, 221_044), (2, 128, 50, 254_068), (1, 256, 50, 441_204), (2, 256, 100, 611_288)],
)
def test_the_vae_has_the_published_size(depth, hidden, latent, count):
    assert parameters(VAE((1, 28, 28), depth=depth, hidden=hidden, latent=latent)) == count


def test_the_gated_classifier_has_the_published_size():
    model = GatedMLP()
    assert parameters(model) == 636_020
    assert parameters(make_network("gated", classes=10, input_shape=(1, 28, 28))) == 636_020
    assert [module.p for module in model.modules() if isinstance(module, Dropout)] == [0.2]


def test_the_gated_classifier_matches_its_formula():
    torch.manual_seed(0)
    model = GatedMLP(6, 5, 3).eval()
    x = torch.randn(4, 2, 3)
    w1, v1 = model.hidden.weight.chunk(2)
    b1, c1 = model.hidden.bias.chunk(2)
    w2, v2 = model.output.weight.chunk(2)
    b2, c2 = model.output.bias.chunk(2)
    flat = x.flatten(1)
    h = F.relu(flat @ w1.T + b1) * torch.sigmoid(flat @ v1.T + c1)
    torch.testing.assert_close(model(x), (h @ w2.T + b2) * torch.sigmoid(h @ v2.T + c2))


def test_gated_weights_start_as_those_of_linear_layers():
    torch.manual_seed(0)
    weight = GatedMLP(100, 50, 10).hidden.weight.detach()
    assert weight.abs().max() <= 1 / math.sqrt(100)
    assert weight.abs().max() > 0.99 / math.sqrt(100)


def test_dropout_drops_with_probability_p_and_keeps_the_mean():
    torch.manual_seed(0)
    dropped = Dropout(0.3)(torch.ones(1001, 999))
    rate = (dropped == 0).float().mean().item()
    assert abs(rate - 0.3) < 5 * math.sqrt(0.21 / dropped.numel())
    assert set(dropped.unique().tolist()) == {0.0, dropped.max().item()}
    assert dropped.max().item() == pytest.approx(1 / 0.7, abs=1e-4)


def test_the_four_masks_of_one_random_number_are_independent():
    torch.manual_seed(0)
    masks = (Dropout(0.5)(torch.ones(40_000, 4)) > 0).float()
    torch.testing.assert_close(torch.corrcoef(masks.T), torch.eye(4), atol=0.03, rtol=0)


def test_dropout_does_nothing_in_eval_mode_or_at_zero():
    x = torch.randn(3, 5)
    assert torch.equal(Dropout(0.9).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)
    with pytest.raises(InvalidInput):
        Dropout(1.0)


def test_the_vae_implements_the_generator_protocol():
    vae = VAE((2, 3), hidden=4, latent=5)
    assert isinstance(vae, Generator)
    mean, log_variance = vae.encode(torch.rand(7, 2, 3))
    assert mean.shape == log_variance.shape == (7, 5)
    assert vae.decode(mean).shape == vae(torch.rand(7, 2, 3)).shape == (7, 2, 3)


def test_the_encoders_variance_is_the_softplus_of_its_output():
    vae = VAE((4,), hidden=3, latent=2)
    x = torch.rand(5, 4)
    output = vae.statistics(F.relu(vae.encoder[1](x)))
    mean, log_variance = vae.encode(x)
    torch.testing.assert_close(mean, output[:, :2])
    torch.testing.assert_close(log_variance.exp(), F.softplus(output[:, 2:]))


def test_a_variance_that_underflows_stays_finite():
    vae = VAE((4,), hidden=3, latent=2)
    with torch.no_grad():
        vae.statistics.bias.fill_(-1000.0)
    assert vae.encode(torch.rand(5, 4))[1].isfinite().all()


def coded(vae: VAE, x: torch.Tensor) -> torch.Tensor:
    """The codes that the next `loss` will draw, by the noise that it will draw."""
    mean, log_variance = vae.encode(x)
    state = torch.get_rng_state()
    z = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)
    torch.set_rng_state(state)
    return z


def test_bernoulli_reconstruction_is_the_log_likelihood():
    torch.manual_seed(0)
    vae, x = VAE((6,), hidden=4, latent=3), torch.rand(5, 6)
    p = vae.decode(coded(vae, x))
    expected = -(x * p.log() + (1 - x) * (1 - p).log()).sum(1)
    torch.testing.assert_close(vae.loss(x).reconstruction, expected)


def test_gaussian_reconstruction_is_the_log_likelihood():
    torch.manual_seed(0)
    vae, x = VAE((6,), hidden=4, latent=3, reconstruction="gaussian", sigma=0.5), torch.randn(5, 6)
    expected = -torch.distributions.Normal(vae.decode(coded(vae, x)), 0.5).log_prob(x).sum(1)
    torch.testing.assert_close(vae.loss(x).reconstruction, expected)


def test_the_divergence_in_closed_form_and_sampled():
    torch.manual_seed(0)
    closed, x = VAE((6,), hidden=4, latent=3), torch.rand(5, 6)
    sampled = VAE((6,), hidden=4, latent=3, kl="sampled")
    sampled.load_state_dict(closed.state_dict())
    mean, log_variance = closed.encode(x)
    posterior, prior = torch.distributions.Normal(mean, (0.5 * log_variance).exp()), torch.distributions.Normal(0, 1)
    z = coded(sampled, x)
    one_sample = (posterior.log_prob(z) - prior.log_prob(z)).sum(1)
    torch.testing.assert_close(sampled.loss(x).kl, one_sample)
    torch.testing.assert_close(closed.loss(x).kl, torch.distributions.kl_divergence(posterior, prior).sum(1))
    many = sampled.loss(x.repeat(4000, 1)).kl.reshape(4000, 5)
    torch.testing.assert_close(many.mean(0), closed.loss(x).kl, atol=0.1, rtol=0)


@pytest.mark.parametrize("x", [torch.full((2, 6), 1.5), torch.full((2, 6), -0.1)])
def test_a_bernoulli_vae_needs_inputs_in_the_unit_interval(x):
    with pytest.raises(InvalidInput, match="gaussian"):
        VAE((6,)).loss(x)


@pytest.mark.parametrize(
    "wrong",
    [
        {"depth": 0},
        {"hidden": 1.5},
        {"latent": 0},
        {"dropout": 1.0},
        {"reconstruction": "l1"},
        {"sigma": 0},
        {"kl": "?"},
    ],
)
def test_invalid_vaes(wrong):
    with pytest.raises(InvalidInput):
        VAE((6,), **wrong)
