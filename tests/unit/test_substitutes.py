"""A model that computes with other tensors in place of its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from rehearse.parts import Substitutes, buffer_copies


class Tied(nn.Module):
    """One weight in two places, and a layer that no attribute of a module names."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(3)
        self._also = [self.first]

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.second(self._also[0](x)))


def test_it_computes_what_functional_call_does_and_puts_all_back() -> None:
    model, x = Tied(), torch.randn(5, 3)
    tensors = {name: torch.randn_like(value) for name, value in model.named_parameters()} | buffer_copies(model)
    own = {name: value.clone() for name, value in model.state_dict().items()}
    expected = functional_call(model, {name: value.clone() for name, value in tensors.items()}, (x,))
    substitutes = Substitutes(model, tensors)
    for turn in range(2):
        with substitutes:
            found = model(x)
        assert torch.equal(found, expected), turn
    assert all(torch.equal(value, own[name]) for name, value in model.state_dict().items())
    assert tensors["norm.num_batches_tracked"] == 2
    assert not own["norm.num_batches_tracked"]
    assert model.second.weight is model.first.weight


def test_gradients_go_to_the_substitutes() -> None:
    model, x = Tied(), torch.randn(5, 3)
    other = torch.randn(3, 3, requires_grad=True)
    with Substitutes(model, {"first.weight": other}):
        model(x).square().sum().backward()
    assert other.grad is not None
    assert model.first.weight.grad is None


def test_after_an_error_all_is_back_in_place() -> None:
    model = Tied()
    weight = model.first.weight
    with pytest.raises(RuntimeError), Substitutes(model, {"first.weight": torch.zeros(3, 3)}):
        model(torch.randn(5, 4))
    assert model.first.weight is weight is model.second.weight


def test_a_name_that_the_model_lacks_is_an_error() -> None:
    with pytest.raises(KeyError, match="third"):
        Substitutes(Tied(), {"third": torch.zeros(3)})
