"""The paper's networks."""

from .autoencoder import ConvAutoencoder
from .gated import GatedMLP
from .mlp import MLP
from .resnet import ReducedResNet18
from .vae import VAE

__all__ = ["MLP", "VAE", "ConvAutoencoder", "GatedMLP", "ReducedResNet18"]
