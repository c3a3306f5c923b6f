"""The MLP and the ResNet: sizes as published, values by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rehearse.errors import InvalidInput
from rehearse.nets import MLP, ReducedResNet18


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def seeded(build):
    torch.manual_seed(0)
    return build()


def test_mlp_has_the_published_size():
    model = MLP()
    assert parameters(model) == 784 * 400 + 400 + 400 * 400 + 400 + 400 * 10 + 10 == 478_410
    assert model.head.in_features == 400
    assert model.head is list(model.modules())[-1]


def test_mlp_matches_its_formula():
    model = seeded(lambda: MLP(6, (5, 4), 3))
    x = torch.randn(7, 1, 2, 3)
    w1, b1, w2, b2, w3, b3 = model.parameters()
    hidden = F.relu(F.relu(x.reshape(7, 6) @ w1.T + b1) @ w2.T + b2)
    torch.testing.assert_close(model.body(x), hidden)
    torch.testing.assert_close(model(x), hidden @ w3.T + b3)


def test_mlp_without_hidden_layers_is_linear():
    model = MLP(6, (), 3)
    x = torch.randn(2, 6)
    assert torch.equal(model(x), model.head(x))


@pytest.mark.parametrize("options", [{"in_features": 0}, {"hidden": (4, 0)}, {"classes": 0}])
def test_invalid_mlps(options):
    with pytest.raises(InvalidInput, match=r"(in_features|hidden|classes) is"):
        MLP(**options)


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet_has_the_published_number_of_parameters(norm):
    assert parameters(ReducedResNet18(norm=norm)) == 1_094_750


@pytest.mark.parametrize(
    ("shape", "inputs"), [((3, 32, 32), 160), ((3, 84, 84), 640), ((1, 32, 84), 320), ((3, 25, 25), 160)]
)
def test_resnet_head_fits_the_input(shape, inputs):
    model = ReducedResNet18(classes=7, input_shape=shape).eval()
    x = torch.randn(2, *shape)
    assert model.head.in_features == inputs
    assert model.body(x).shape == (2, inputs)
    assert model(x).shape == (2, 7)
    assert torch.equal(model(x), model.head(model.body(x)))


@pytest.mark.parametrize("side", [28, 30])
def test_resnet_takes_odd_sides(side):
    assert ReducedResNet18(base=4, input_shape=(1, side, side))(torch.randn(2, 1, side, side)).shape == (
        2,
        10,
    )


def test_resnet_halves_the_map_in_the_last_three_stages():
    model = ReducedResNet18(base=4).eval()
    sizes = []
    for block in model.body[3:11]:
        block.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
    model(torch.randn(1, 3, 32, 32))
    assert sizes == [(4, 32, 32)] * 2 + [(8, 16, 16)] * 2 + [(16, 8, 8)] * 2 + [(32, 4, 4)] * 2


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_resnet_computes_the_same_in_both_memory_formats(norm):
    model = seeded(lambda: ReducedResNet18(base=4, input_shape=(3, 84, 84), norm=norm)).eval()
    x = torch.randn(3, 3, 84, 84)
    expected = model(x)
    model = model.to(memory_format=torch.channels_last)
    actual = model(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_batch_norm_depends_on_the_batch_and_group_norm_does_not():
    x = torch.randn(4, 3, 32, 32)
    for norm, alike in [("batch", False), ("group", True)]:
        model = seeded(lambda norm=norm: ReducedResNet18(base=4, norm=norm)).train()
        alone, together = model(x[:2]), model(x)[:2]
        assert torch.allclose(alone, together, atol=1e-4) is alike
        assert bool(list(model.buffers())) is not alike
        assert sum(isinstance(m, nn.BatchNorm2d | nn.GroupNorm) for m in model.modules()) == 20


def test_a_block_adds_its_input():
    block = ReducedResNet18(base=4).eval().body[3]
    nn.init.zeros_(block.residual[-1].weight)
    x = torch.randn(2, 4, 8, 8)
    assert torch.equal(block(x), F.relu(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 0}, "positive whole number"),
        ({"base": 0}, "positive whole number"),
        ({"norm": "layer"}, "batch, group"),
        ({"norm": "group", "base": 6}, "multiple of 4"),
        ({"input_shape": (3, 24, 32)}, "at least 25"),
        ({"input_shape": (0, 32, 32)}, "channels, height, width"),
    ],
)
def test_invalid_resnets(options, message):
    with pytest.raises(InvalidInput, match=message):
        ReducedResNet18(**options)
