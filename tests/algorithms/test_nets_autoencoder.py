"""The convolutional autoencoder: its shape, its size, its formula."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from rehearse.errors import InvalidInput
from rehearse.latent import Autoencoder
from rehearse.nets import ConvAutoencoder
from rehearse.nets.autoencoder import Residual


def test_the_autoencoder_has_the_published_size() -> None:
    network = ConvAutoencoder()
    x = torch.rand(2, 3, 32, 32) * 2 - 1
    code = network.encode(x)
    assert isinstance(network, Autoencoder)
    assert code.shape == (2, 20, 4, 4) == (2, *network.code_shape)
    assert 3 * 32 * 32 / code[0].numel() == 9.6
    assert network.decode(code).shape == x.shape
    assert sum(p.numel() for p in network.parameters()) == 44_160
    assert sum(p.numel() for p in network.encoder.parameters()) == 22_080


@pytest.mark.parametrize(
    ("shape", "depth", "code"),
    [
        ((1, 28, 28), 3, (20, 3, 3)),
        ((3, 84, 84), 3, (20, 10, 10)),
        ((2, 33, 47), 2, (20, 8, 11)),
        ((1, 2, 4), 1, (20, 1, 2)),
    ],
)
def test_reconstructions_have_the_inputs_shape(shape: tuple[int, ...], depth: int, code: tuple[int, ...]) -> None:
    network = ConvAutoencoder(shape, depth=depth)
    x = torch.rand(3, *shape)
    assert network.encode(x).shape == (3, *code) == (3, *network.code_shape)
    assert network(x).shape == x.shape


def test_the_autoencoder_matches_its_layers_one_by_one() -> None:
    """The whole pass again with torch's functions, in eval mode, after statistics have moved."""
    torch.manual_seed(0)
    network = ConvAutoencoder((3, 8, 8), channels=4, depth=2)
    network(torch.randn(6, 3, 8, 8))
    network.eval()
    weights = dict(network.state_dict())

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        w = {part: weights[f"{name}.{part}"] for part in ("running_mean", "running_var", "weight", "bias")}
        return F.batch_norm(x, w["running_mean"], w["running_var"], w["weight"], w["bias"])

    def residual(x: torch.Tensor, name: str) -> torch.Tensor:
        name += ".residual"
        inner = F.conv2d(F.relu(x), weights[f"{name}.1.weight"], weights[f"{name}.1.bias"], padding=1)
        inner = F.relu(norm(inner, f"{name}.2"))
        return x + F.conv2d(inner, weights[f"{name}.4.weight"], weights[f"{name}.4.bias"])

    x = torch.randn(5, 3, 8, 8)
    h = F.relu(norm(F.conv2d(x, weights["encoder.0.weight"], stride=2, padding=1), "encoder.1"))
    h = F.relu(norm(F.conv2d(h, weights["encoder.3.weight"], stride=2, padding=1), "encoder.4"))
    h = residual(norm(residual(h, "encoder.6"), "encoder.7"), "encoder.8")
    torch.testing.assert_close(network.encode(x), h)
    y = norm(residual(norm(residual(h, "decoder.0"), "decoder.1"), "decoder.2"), "decoder.3")
    y = F.conv_transpose2d(y, weights["decoder.4.weight"], stride=2, padding=1)
    y = F.conv_transpose2d(F.relu(norm(y, "decoder.5")), weights["decoder.7.weight"], stride=2, padding=1)
    torch.testing.assert_close(network.decode(h), y.tanh())


def test_a_residual_block_leaves_its_input_alone() -> None:
    block, x = Residual(3), torch.randn(2, 3, 4, 4)
    before = x.clone()
    block(x)
    assert torch.equal(x, before)


def test_both_memory_formats_agree() -> None:
    torch.manual_seed(0)
    network = ConvAutoencoder().eval()
    x = torch.randn(4, 3, 32, 32)
    plain = network(x)
    network.to(memory_format=torch.channels_last)
    torch.testing.assert_close(network(x.contiguous(memory_format=torch.channels_last)), plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("output", "low", "high"), [("tanh", -1, 1), ("sigmoid", 0, 1)])
def test_outputs_are_bounded(output: str, low: int, high: int) -> None:
    made = ConvAutoencoder(output=output).decode(100 * torch.randn(4, 20, 4, 4))  # type: ignore[arg-type]
    assert low <= made.min() < made.max() <= high
    assert ConvAutoencoder(output="linear").decode(1e4 * torch.randn(4, 20, 4, 4)).abs().max() > 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"input_shape": (784,)}, "images"),
        ({"input_shape": (3, 4, 32)}, "depth of at most 2"),
        ({"channels": 0}, "channels is 0"),
        ({"depth": 1.5}, "depth is 1.5"),
        ({"output": "relu"}, "output is 'relu'"),
    ],
)
def test_invalid_autoencoders(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        ConvAutoencoder(**arguments)  # type: ignore[arg-type]
