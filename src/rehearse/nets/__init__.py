"""The paper's networks."""

from .autoencoder import ConvAutoencoder as ConvAutoencoder
from .gated import GatedMLP as GatedMLP
from .mlp import MLP as MLP
from .resnet import ReducedResNet18 as ReducedResNet18
from .vae import VAE as VAE
