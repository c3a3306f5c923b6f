"""The reduced ResNet-18 of the paper's CIFAR-10 and Mini-ImageNet experiments."""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from ..checks import check_choice, check_positive
from ..errors import InvalidInput

Norm = Literal["batch", "group"]
GROUPS = 4  # divides 20, 40, 80 and 160; Wu & He 2018 found the number of groups to matter little
POOL = 4  # the paper averages windows of 4 × 4


class ReducedResNet18(nn.Module):
    """ResNet-18 (He et al. 2016) with ``base`` filters instead of 64 and no pooling at the input.

    A 3 × 3 convolution; four stages of two basic blocks with 1, 2, 4 and 8 times ``base`` filters and strides
    1, 2, 2, 2; an average over windows of 4 × 4; a linear ``head``. It is the network of Lopez-Paz & Ranzato
    2017 and of Tables 2 to 4 in Aljundi et al. 2019. With the defaults it has 1,094,750 parameters. A 32 × 32
    input leaves one window (head of 160 inputs), an 84 × 84 input 2 × 2 windows (640 inputs).

    ``norm="group"`` replaces batch-norm by group-norm of 4 groups (Wu & He 2018): as many parameters, and no
    statistics of the batch or of the past, so that a comparison of retrievals is not one of statistics.

    Inputs may be in either memory format; initialization is torch's own.
    """

    channels_last = True
    """Learners store weights and images channels-last, which is faster on a CPU; nothing here views them flat."""

    def __init__(
        self,
        classes: int = 10,
        base: int = 20,
        input_shape: tuple[int, int, int] = (3, 32, 32),
        norm: Norm = "batch",
    ) -> None:
        """Set the number of ``classes`` and of filters, the ``input_shape`` of one image, and the normalization."""
        super().__init__()
        check_positive(classes=classes, base=base)
        check_choice(get_args(Norm), norm=norm)
        if norm == "group" and base % GROUPS:
            raise InvalidInput(f"group-norm needs base to be a multiple of {GROUPS}; got base={base}")
        channels, height, width = input_shape
        windows = _windows(height) * _windows(width)
        if channels < 1 or not windows:
            raise InvalidInput(f"input_shape is (channels, height, width), both sides at least 25; got {input_shape}")
        self.body = nn.Sequential(
            _convolution(channels, base, 3, 1),
            _normalization(norm, base),
            nn.ReLU(inplace=True),
            *_stage(base, base, 1, norm),
            *_stage(base, 2 * base, 2, norm),
            *_stage(2 * base, 4 * base, 2, norm),
            *_stage(4 * base, 8 * base, 2, norm),
            nn.AvgPool2d(POOL),
            nn.Flatten(),
        )
        self.head = nn.Linear(8 * base * windows, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return one logit per class."""
        logits: Tensor = self.head(self.body(x))
        return logits


class BasicBlock(nn.Module):
    """Two 3 × 3 convolutions added to their input, which a 1 × 1 convolution reshapes if needed."""

    relu_of_sum = ("residual", "shortcut")
    """What is added under the ReLU, for kernels that do both at once."""

    def __init__(self, before: int, after: int, stride: int, norm: Norm) -> None:
        """Set the numbers of channels, the stride and the normalization."""
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(before, after, 3, stride),
            _normalization(norm, after),
            nn.ReLU(inplace=True),
            _convolution(after, after, 3, 1),
            _normalization(norm, after),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(_convolution(before, after, 1, stride), _normalization(norm, after))

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(residual(x) + shortcut(x))."""
        total: Tensor = self.residual(x)
        total += self.shortcut(x)  # in place: a normalization does not need its output for the gradient
        return F.relu(total, inplace=True)


def _stage(before: int, after: int, stride: int, norm: Norm) -> list[nn.Module]:
    return [BasicBlock(before, after, stride, norm), BasicBlock(after, after, 1, norm)]


def _convolution(before: int, after: int, kernel: int, stride: int) -> nn.Conv2d:
    # No bias: the normalization that follows would cancel it.
    return nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)


def _normalization(norm: Norm, channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.GroupNorm(GROUPS, channels)


def _windows(side: int) -> int:
    """Return how many pooling windows fit along a side after three strides of 2, each of which rounds up."""
    return -(-side // 8) // POOL
