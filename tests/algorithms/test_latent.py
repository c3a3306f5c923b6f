"""Search in latent space: gradient ascent, and fallbacks."""

import math

import pytest
import torch

from rehearse.errors import CheckpointError, InvalidInput
from rehearse.latent import Elbo, LatentSearch, gaussian_kl


def test_a_step_ascends_the_gradient_by_the_step_size():
    start = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
    found = LatentSearch(steps=1, step_size=0.1)(lambda z: -z.square().sum(), start)
    torch.testing.assert_close(found, start - 0.1 * 2 * start)


def test_several_steps_compound():
    start = torch.tensor([[1.0], [4.0]])
    found = LatentSearch(steps=3, step_size=0.25)(lambda z: -z.square().sum(), start)
    torch.testing.assert_close(found, start * 0.5**3)


def test_with_no_steps_the_points_stay():
    start = torch.randn(3, 2)
    search = LatentSearch(steps=0)
    assert torch.equal(search(lambda z: z.sum(), start), start)
    assert (search.searches, search.fallbacks) == (1, 0)


def test_the_start_is_not_changed_and_the_result_is_detached():
    start = torch.ones(2, 2)
    found = LatentSearch(steps=2)(lambda z: z.square().sum(), start)
    assert torch.equal(start, torch.ones(2, 2))
    assert not found.requires_grad
    assert not start.requires_grad


def test_the_search_works_under_no_grad():
    with torch.no_grad():
        found = LatentSearch(steps=1, step_size=1.0)(lambda z: z.sum(), torch.zeros(1, 1))
    assert found.item() == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_search_that_is_not_finite_is_counted_and_returns_none(bad):
    search = LatentSearch(steps=3)
    assert search(lambda z: (z * bad).sum(), torch.ones(2, 2)) is None
    assert search(lambda z: z.sum(), torch.ones(2, 2)) is not None
    assert (search.searches, search.fallbacks) == (2, 1)


@pytest.mark.parametrize("wrong", [{"steps": -1}, {"steps": 1.5}, {"steps": True}, {"step_size": 0.0}])
def test_invalid_searches(wrong):
    with pytest.raises(InvalidInput):
        LatentSearch(**wrong)


def test_gaussian_kl_by_hand():
    mean, variance = torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.tensor([[1.0, 1.0], [4.0, 0.25]])
    by_hand = 0.5 * ((1 + 4 - 1 - math.log(4)) + (4 + 0.25 - 1 - math.log(0.25)))
    torch.testing.assert_close(gaussian_kl(mean, variance.log()), torch.tensor([0.0, by_hand]))


def test_gaussian_kl_agrees_with_torch():
    mean, log_variance = torch.randn(5, 3), torch.randn(5, 3)
    posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
    prior = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
    expected = torch.distributions.kl_divergence(posterior, prior).sum(1)
    torch.testing.assert_close(gaussian_kl(mean, log_variance), expected)


def test_beta_weighs_the_kl_part_alone():
    elbo = Elbo(torch.tensor([3.0]), torch.tensor([2.0]))
    assert elbo.total().item() == 5
    assert elbo.total(0.5).item() == 4


def test_sums_without_a_measured_search_are_refused():
    search = LatentSearch()
    good = search.state_dict()
    for wrong in ({"sums": [1.0]}, {"measured": 2}):
        with pytest.raises(CheckpointError, match="searches were measured"):
            search.load_state_dict({**good, **wrong})
    assert search.state_dict() == good
