"""`install`: where it does nothing, what it replaces, and what happens to copies."""

from __future__ import annotations

import copy
import pickle
import threading

import pytest
import torch
from torch import Tensor, nn

from kernel_fixtures import Autoencoder, Block, ResidualNetwork, bfloat16, random, rounded, small
from rehearse_kernels import install, sequences
from rehearse_kernels.sequences import KernelForward


def replaced(model: nn.Module) -> list[nn.Module]:
    return [module for module in model.modules() if "forward" in vars(module)]


def test_without_kernels_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "available", lambda: False)
    model, x = ResidualNetwork(base=4), random(2, 3, 32, 32)
    plain = copy.deepcopy(model)
    before = {name: list(vars(module)) for name, module in model.named_modules()}
    install(model, full=True)
    assert {name: list(vars(module)) for name, module in model.named_modules()} == before
    with bfloat16():
        assert torch.equal(model(x), plain(x))


def test_a_model_that_is_not_channels_last_is_unchanged(kernels: list[str]) -> None:
    model = nn.Sequential(nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
    install(model)
    assert not replaced(model)
    model.channels_last = False
    install(model)
    assert not replaced(model)
    with bfloat16():
        assert model(random(3, 4, 8, 8)).is_contiguous()
    assert not kernels


def test_sequences_and_blocks_are_replaced_and_nothing_else(kernels: list[str]) -> None:
    model = ResidualNetwork(base=4)
    install(model)
    assert all(isinstance(module, nn.Sequential | Block) for module in replaced(model))
    assert len(replaced(model)) == 1 + 8 + 8 + 3  # body, blocks, residuals, shortcuts with a convolution
    assert list(model.state_dict()) == list(ResidualNetwork(base=4).state_dict())


@pytest.mark.usefixtures("kernels")
def test_a_second_installation_replaces_the_first() -> None:
    net = small()
    install(net)
    install(net, full=True)
    forward = vars(net)["forward"]
    assert isinstance(forward, KernelForward)
    assert forward.full


@pytest.mark.usefixtures("kernels")
def test_a_forward_that_a_user_patched_is_kept() -> None:
    net = small()
    net.forward = lambda x: x * 0 + 7
    install(net)
    with bfloat16():
        assert torch.equal(net(random(1, 4, 2, 2)), torch.full((1, 4, 2, 2), 7.0))


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "sharing tensors"])
def test_a_copy_computes_with_its_own_layers(kernels: list[str], how: str) -> None:
    model, x = Autoencoder(4), random(2, 3, 16, 16)
    install(model)
    if how == "deepcopy":
        other = copy.deepcopy(model)
    elif how == "pickle":
        other = pickle.loads(pickle.dumps(model))
    else:
        tensors = [*model.parameters(), *model.buffers()]
        other = copy.deepcopy(model, memo={id(each): each for each in tensors})
    own = set(other.modules())
    assert replaced(other)
    for module in replaced(other):
        assert vars(module)["forward"].module is module
    assert own.isdisjoint(model.modules())
    with bfloat16(), torch.no_grad():
        for module in model.modules():
            module.eval()  # modes belong to each copy
        model(x)
        kernels.clear()
        before = other.encoder[1].num_batches_tracked.clone()
        other(x)
        assert kernels.count("normalize") == 6
        assert other.encoder[1].num_batches_tracked == before + 1
        if how != "sharing tensors":
            found = other(x)
            for parameter in model.parameters():
                parameter.zero_()
            assert torch.equal(other(x), found)


def test_a_twin_on_the_meta_device_with_the_tensors_of_the_live_model(kernels: list[str]) -> None:
    model, x = ResidualNetwork(base=4), random(2, 3, 32, 32)
    twin = copy.deepcopy(model).to("meta")
    install(twin)
    tensors = {**dict(model.named_parameters()), **{name: value.clone() for name, value in model.named_buffers()}}
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with bfloat16():
        found = torch.func.functional_call(twin, tensors, (x,))
        assert kernels.count("normalize") == 20
        assert not replaced(model)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        expected = copy.deepcopy(model)
        install(expected)
        assert torch.equal(found, expected(x))


def test_threads_may_share_an_installed_model(kernels: list[str]) -> None:
    net, x = small().eval(), rounded(random(3, 4, 8, 8))
    install(net)
    with bfloat16():
        right = net(x)
    found: list[Tensor] = []

    def run() -> None:
        with bfloat16(), torch.no_grad():
            found.extend(net(x) for _ in range(5))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert all(torch.equal(each, right) for each in found)
    assert set(kernels) == {"convolve"}
