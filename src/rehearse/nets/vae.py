"""The variational autoencoder of generative replay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import check_above_zero, check_choice, check_positive
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

    ``reconstruction`` is p(x|z): ``"bernoulli"`` for inputs in [0, 1] (grey levels are probabilities, as in the paper's
    MNIST experiments) or ``"gaussian"``, N(x | g(z), ``sigma``² I) (Eq. 3 of the paper). ``kl`` is the divergence in
    closed form, or its one-sample estimate log q(z|x) − log p(z), as in the reference implementation.

    Inputs have ``input_shape``, and so does the result of `decode`. Initialization is torch's own. With depth 1 and
    128 units on 28 × 28 images it has 221,044 parameters.
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
        """Set the shape of the inputs, the sizes of the layers, and the terms of the loss; see above.

        Args:
            input_shape: The shape of one input.
            depth: The number of hidden layers of the encoder, and of the decoder.
            hidden: The units of each hidden layer.
            latent: The dimensions of z.
            dropout: The probability with which a hidden unit is left out in training.
            reconstruction: ``bernoulli`` or ``gaussian``.
            sigma: The standard deviation of ``gaussian``.
            kl: ``closed`` or ``sampled``.
        """
        super().__init__()
        self.input_shape = tuple(input_shape)
        features = math.prod(self.input_shape)
        check_positive(features=features, depth=depth, hidden=hidden, latent=latent)
        check_choice(get_args(Reconstruction), reconstruction=reconstruction)
        check_choice(get_args(Divergence), kl=kl)
        check_above_zero(sigma=sigma)
        self.latent = latent
        self.reconstruction, self.sigma, self.kl = reconstruction, sigma, kl
        self.encoder = nn.Sequential(nn.Flatten(), *_layers(features, hidden, depth, dropout))
        self.statistics = nn.Linear(hidden, 2 * latent)  # mean and variance in one product
        self.decoder = nn.Sequential(*_layers(latent, hidden, depth, dropout), nn.Linear(hidden, features))

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and log-variance of q(z|x)."""
        mean, spread = at_least_float32(self.statistics(self.encoder(x))).chunk(2, dim=1)
        variance = F.softplus(spread).clamp_min(torch.finfo(spread.dtype).tiny)
        return mean, variance.log()

    def decode(self, z: Tensor) -> Tensor:
        """Return the mean of p(x|z), in the shape of the inputs."""
        output = at_least_float32(self.decoder(z))
        mean = output.sigmoid() if self.reconstruction == "bernoulli" else output
        return mean.reshape(len(z), *self.input_shape)

    def loss(self, x: Tensor) -> Elbo:
        """Return −ELBO of each sample in its two parts, for one z drawn from q(z|x) each."""
        mean, log_variance = self.encode(x)
        noise = torch.randn_like(mean)
        z = mean + (0.5 * log_variance).exp() * noise
        if self.kl == "closed":
            kl = gaussian_kl(mean, log_variance)
        else:  # the constants of the densities cancel
            kl = 0.5 * (z.square() - noise.square() - log_variance).sum(1)
        return Elbo(self._reconstruction_loss(x.flatten(1), self.decoder(z)), kl)

    def forward(self, x: Tensor) -> Tensor:
        """Return the reconstruction of x through the mean of q(z|x)."""
        return self.decode(self.encode(x)[0])

    def _reconstruction_loss(self, x: Tensor, output: Tensor) -> Tensor:
        """Return −log p(x|z), summed over the entries of a sample; ``output`` is the decoder's last layer."""
        if self.reconstruction == "gaussian":
            constant = x.shape[1] * (math.log(self.sigma) + 0.5 * math.log(2 * math.pi))
            return (x - output).square().sum(1) / (2 * self.sigma**2) + constant
        low, high = x.detach().aminmax() if x.numel() else (0.0, 1.0)
        if low < 0 or high > 1:
            found = f"[{float(low):g}, {float(high):g}]"
            raise InvalidInput(f"reconstruction='bernoulli' needs inputs in [0, 1], not {found}; use 'gaussian'")
        return F.binary_cross_entropy_with_logits(output, x, reduction="none").sum(1)


def _layers(before: int, hidden: int, depth: int, dropout: float) -> list[nn.Module]:
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(before, hidden), nn.ReLU(), Dropout(dropout)]
        before = hidden
    return layers
