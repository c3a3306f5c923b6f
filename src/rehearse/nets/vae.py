"""The variational autoencoder that imagines the past."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..chain import listened_to
from ..errors import InvalidInput
from ..latent import Elbo, gaussian_kl
from ..losses import in_full
from .dropout import Dropout
from .vae_gradient import Layer, backward, forward, layers_of

Reconstruction = Literal["bernoulli", "gaussian"]
Divergence = Literal["closed", "sampled"]


class VAE(nn.Module):
    """A variational autoencoder (Kingma & Welling 2014) of fully connected layers.

        q(z|x) = N(μ(x), diag σ²(x))        encoder: [Linear, ReLU, Dropout] × depth, then μ and σ² = softplus(·)
        p(z)   = N(0, I)
        p(x|z)                              decoder: [Linear, ReLU, Dropout] × depth, then Linear
        −ELBO  = −log p(x|z) + KL(q(z|x) ‖ p(z)),   z ~ q(z|x)

    ``reconstruction`` says what p(x|z) is: ``"bernoulli"`` for inputs in [0, 1] (grey levels count as probabilities,
    as in the paper's MNIST experiments) or ``"gaussian"``, N(x | g(z), ``sigma``² I) (Eq. 3 of the paper). ``kl`` is
    the divergence in closed form, or its one-sample estimate log q(z|x) − log p(z), as in the authors' program.

    Inputs have ``input_shape``; `decode` gives that shape back. Initialisation is torch's own. With depth 1 and 128
    units on 28 × 28 images it has 221,044 parameters.
    """

    def __init__(
        self,
        input_shape: Sequence[int] = (1, 28, 28),
        *,
        depth: int = 1,
        hidden: int = 128,
        latent: int = 50,
        dropout: float = 0.0,
        reconstruction: Reconstruction = "bernoulli",
        sigma: float = 1.0,
        kl: Divergence = "closed",
    ) -> None:
        super().__init__()
        self.input_shape = tuple(input_shape)
        features = math.prod(self.input_shape)
        if not all(isinstance(size, int) and size >= 1 for size in (features, depth, hidden, latent)):
            raise InvalidInput(
                f"a layer has a whole number of units, at least one; got input_shape={self.input_shape}, "
                f"depth={depth!r}, hidden={hidden!r}, latent={latent!r}"
            )
        if reconstruction not in get_args(Reconstruction):
            raise InvalidInput(f"reconstruction is {reconstruction!r}; it must be 'bernoulli' or 'gaussian'")
        if not 0 < sigma < math.inf:
            raise InvalidInput(f"sigma is {sigma!r}; a standard deviation is positive")
        if kl not in get_args(Divergence):
            raise InvalidInput(f"kl is {kl!r}; it must be 'closed' or 'sampled'")
        self.latent = latent
        self.reconstruction, self.sigma, self.kl = reconstruction, sigma, kl
        self.encoder = nn.Sequential(nn.Flatten(), *_layers(features, hidden, depth, dropout))
        self.statistics = nn.Linear(hidden, 2 * latent)  # mean and variance in one product
        self.decoder = nn.Sequential(*_layers(latent, hidden, depth, dropout), nn.Linear(hidden, features))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z|x)."""
        mean, spread = in_full(self.statistics(self.encoder(x))).chunk(2, dim=1)
        variance = F.softplus(spread).clamp_min(torch.finfo(spread.dtype).tiny)
        return mean, variance.log()

    def decode(self, z: Tensor) -> Tensor:
        """The mean of p(x|z), in the shape of the inputs."""
        output = in_full(self.decoder(z))
        mean = output.sigmoid() if self.reconstruction == "bernoulli" else output
        return mean.reshape(len(z), *self.input_shape)

    def sample(self, rows: int) -> Tensor:
        """``rows`` inputs imagined from the prior: the decoder's means at z ~ N(0, I)."""
        weight = self.statistics.weight
        return self.decode(torch.randn(rows, self.latent, device=weight.device, dtype=weight.dtype))

    def loss(self, x: Tensor) -> Elbo:
        """−ELBO of each row in its two parts, for one z drawn from q(z|x) each."""
        mean, log_variance = self.encode(x)
        noise = torch.randn_like(mean)
        z = mean + (0.5 * log_variance).exp() * noise
        kl = self._divergence(mean, log_variance, noise, z)
        return Elbo(self._reconstruction_loss(x.flatten(1), self.decoder(z)), kl)

    def forward(self, x: Tensor) -> Tensor:
        """The reconstruction of x through the mean of q(z|x)."""
        return self.decode(self.encode(x)[0])

    def by_hand(self) -> Callable[[Tensor], VaePass] | None:
        """What passes rows as `loss` does, for a gradient by hand; None where a layer is not what it was made as."""
        encoder, decoder = layers_of(self.encoder, "encoder"), layers_of(self.decoder, "decoder")
        if encoder is None or decoder is None or type(self.statistics) is not nn.Linear or listened_to(self.statistics):
            return None
        encoder = [*encoder, Layer("statistics", self.statistics)]
        names = {f"{layer.name}.{part}" for layer in encoder + decoder for part in ("weight", "bias")}
        if {name for name, _ in self.named_parameters()} != names:  # one that is shared has one name alone
            return None
        return partial(VaePass, self, encoder, decoder)

    def _divergence(self, mean: Tensor, log_variance: Tensor, noise: Tensor, z: Tensor) -> Tensor:
        """KL(q(z|x) ‖ p(z)) of each row."""
        if self.kl == "closed":
            return gaussian_kl(mean, log_variance)
        return 0.5 * (z.square() - noise.square() - log_variance).sum(1)  # the constants of the densities cancel

    def _reconstruction_loss(self, x: Tensor, output: Tensor) -> Tensor:
        """−log p(x|z), summed over the entries of a row; ``output`` is the decoder's last layer."""
        if self.reconstruction == "gaussian":
            constant = x.shape[1] * (math.log(self.sigma) + 0.5 * math.log(2 * math.pi))
            return (x - output).square().sum(1) / (2 * self.sigma**2) + constant
        low, high = x.detach().aminmax() if x.numel() else (0.0, 1.0)
        if low < 0 or high > 1:
            raise InvalidInput(
                f"a Bernoulli reconstruction needs inputs in [0, 1], these are in [{float(low):g}, {float(high):g}]; "
                "use reconstruction='gaussian'"
            )
        return F.binary_cross_entropy_with_logits(output, x, reduction="none").sum(1)


class VaePass:
    """One pass of rows through a `VAE`: draws what its `loss` draws, and keeps what the gradient needs.

    A step of such a small network is made of calls rather than of arithmetic: autograd takes a third of it. With
    weights r of the rows, k = β r, output o and the deltas of linear layers as in `rehearse.chain`:

        Δoutput = r (σ(o) − x)                  Bernoulli;   r (o − x) / σ²   Gaussian
        Δz      = Δoutput through the decoder
        Δμ      = Δz + k μ,     Δv = Δz ε / 2√v + k (1 − 1/v) / 2        divergence in closed form
        Δz     += k z,          Δv = Δz ε / 2√v − k / 2v                 sampled, where Δμ = Δz
        Δspread = Δv σ(spread)                  v = softplus(spread)
    """

    @torch.no_grad()
    def __init__(self, vae: VAE, encoder: list[Layer], decoder: list[Layer], x: Tensor) -> None:
        self._vae, self._x = vae, x.flatten(1)
        self._encoded, statistics = forward(encoder, self._x)
        self._mean, self._spread = statistics.chunk(2, dim=1)
        self._variance = F.softplus(self._spread).clamp_min(torch.finfo(x.dtype).tiny)
        self._deviation = self._variance.sqrt()
        self._noise = torch.randn_like(self._mean)
        self._z = torch.addcmul(self._mean, self._deviation, self._noise)
        self._decoded, self._output = forward(decoder, self._z)

    @torch.no_grad()
    def losses(self) -> Elbo:
        """−ELBO of each row in its two parts."""
        kl = self._vae._divergence(self._mean, self._variance.log(), self._noise, self._z)
        return Elbo(self._vae._reconstruction_loss(self._x, self._output), kl)

    @torch.no_grad()
    def gradient(self, weights: Tensor, beta: float) -> dict[str, Tensor]:
        """∇ Σᵢ weightᵢ (reconstructionᵢ + β KLᵢ) by parameter name."""
        gradient: dict[str, Tensor] = {}
        r, k = weights[:, None], beta * weights[:, None]
        if self._vae.reconstruction == "bernoulli":
            delta = self._output.sigmoid().sub_(self._x).mul_(r)
        else:
            delta = (self._output - self._x).mul_(r / self._vae.sigma**2)
        delta = backward(self._decoded, delta, gradient)
        of_mean = delta
        if self._vae.kl == "closed":
            of_mean = delta + k * self._mean
            of_variance = 0.5 * k * (1 - 1 / self._variance)
        else:
            of_mean = delta = delta + k * self._z
            of_variance = -0.5 * k / self._variance
        of_variance = of_variance + 0.5 * delta * self._noise / self._deviation
        of_spread = of_variance * self._spread.sigmoid()
        of_spread = of_spread.masked_fill(self._variance <= torch.finfo(self._variance.dtype).tiny, 0)  # held there
        backward(self._encoded, torch.cat([of_mean, of_spread], 1), gradient, inputs=False)
        return gradient


def _layers(before: int, hidden: int, depth: int, dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(before, hidden), nn.ReLU(), Dropout(dropout)]
        before = hidden
    return layers
