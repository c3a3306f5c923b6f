"""The variational autoencoder that imagines the past."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import InvalidInput
from ..latent import Elbo, gaussian_kl
from ..losses import at_least_float32
from .dropout import Dropout

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
        mean, spread = at_least_float32(self.statistics(self.encoder(x))).chunk(2, dim=1)
        variance = F.softplus(spread).clamp_min(torch.finfo(spread.dtype).tiny)
        return mean, variance.log()

    def decode(self, z: Tensor) -> Tensor:
        """The mean of p(x|z), in the shape of the inputs."""
        output = at_least_float32(self.decoder(z))
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


def _layers(before: int, hidden: int, depth: int, dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(before, hidden), nn.ReLU(), Dropout(dropout)]
        before = hidden
    return layers
