"""The autoencoder of replay from codes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

from torch import Tensor, nn

from ..checks import check_choice, check_positive
from ..errors import InvalidInput

Output = Literal["tanh", "sigmoid", "linear"]
KERNEL: Final[dict[str, Any]] = {"kernel_size": 4, "stride": 2, "padding": 1, "bias": False}
"""Of convolutions that halve a side; the batch-norm after them has a bias."""


class ConvAutoencoder(nn.Module):
    """The convolutional autoencoder of Aljundi et al. 2019 (appendix): a plain one, without noise or prior.

        encoder   [4 × 4 convolution of stride 2, batch-norm, ReLU] × depth, residual block, batch-norm, residual block
        decoder   residual block, batch-norm, residual block, batch-norm,
                  [4 × 4 transposed convolution of stride 2, batch-norm, ReLU] × (depth − 1), one more of them, output

    Each of the ``depth`` convolutions halves height and width. With the defaults a 3 × 32 × 32 image becomes a code of
    20 × 4 × 4 = 320 numbers, 9.6 times fewer, and there are 44,160 parameters. Sides may be of any size of at least
    2 ** depth, odd ones too. A code has no bounds; ``output`` bounds the reconstruction: ``tanh`` for inputs in
    [−1, 1] (and in [0, 1]), ``sigmoid`` for [0, 1], or ``linear``.

    Initialization is torch's own; inputs may be in either memory format.
    """

    channels_last = True
    kernels_in_float32 = True
    """Codes are always made and read in float32."""

    def __init__(
        self,
        input_shape: Sequence[int] = (3, 32, 32),
        *,
        channels: int = 20,
        depth: int = 3,
        output: Output = "tanh",
    ) -> None:
        """Set the ``input_shape`` of one image, the numbers of ``channels`` and convolutions, and the last function."""
        super().__init__()
        self.input_shape = tuple(input_shape)
        if len(self.input_shape) != 3 or not all(isinstance(size, int) and size >= 1 for size in self.input_shape):
            raise InvalidInput(f"this autoencoder takes images (channels, height, width), not {self.input_shape}")
        check_positive(channels=channels, depth=depth)
        check_choice(get_args(Output), output=output)
        colors, height, width = self.input_shape
        sides = [(height >> level, width >> level) for level in range(depth + 1)]
        if min(sides[-1]) < 1:
            most = min(height, width).bit_length() - 1
            raise InvalidInput(f"{height} × {width} cannot be halved {depth} times; choose a depth of at most {most}")
        self.code_shape = (channels, *sides[-1])
        down = [layer for level in range(depth) for layer in _halving(channels if level else colors, channels)]
        self.encoder = nn.Sequential(*down, Residual(channels), nn.BatchNorm2d(channels), Residual(channels))
        middle = [Residual(channels), nn.BatchNorm2d(channels), Residual(channels), nn.BatchNorm2d(channels)]
        up = [layer for level in range(depth - 1, 0, -1) for layer in _doubling(channels, channels, sides[level])]
        self.decoder = nn.Sequential(*middle, *up, _doubling(channels, colors, sides[0])[0])
        self.output: nn.Module = {"tanh": nn.Tanh(), "sigmoid": nn.Sigmoid(), "linear": nn.Identity()}[output]

    def encode(self, x: Tensor) -> Tensor:
        """Return the code of each image, of ``code_shape``."""
        code: Tensor = self.encoder(x)
        return code

    def decode(self, code: Tensor) -> Tensor:
        """Return an image for each code."""
        x: Tensor = self.output(self.decoder(code))
        return x

    def forward(self, x: Tensor) -> Tensor:
        """Return the images as they are decoded from their codes."""
        return self.decode(self.encode(x))


class Residual(nn.Module):
    """x + conv1×1(ReLU(batch-norm(conv3×3(ReLU(x)))))."""

    def __init__(self, channels: int) -> None:
        """Set the number of channels."""
        super().__init__()
        self.residual = nn.Sequential(
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum; the input stays as it is."""
        total: Tensor = x + self.residual(x)
        return total


def _halving(before: int, after: int) -> list[nn.Module]:
    return [nn.Conv2d(before, after, **KERNEL), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]


def _doubling(before: int, after: int, sides: tuple[int, int]) -> list[nn.Module]:
    """Return layers that double to these sides; an odd one lost a line when it was halved, and gets it back."""
    doubled = nn.ConvTranspose2d(before, after, output_padding=(sides[0] % 2, sides[1] % 2), **KERNEL)
    return [doubled, nn.BatchNorm2d(after), nn.ReLU(inplace=True)]
