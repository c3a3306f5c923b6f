"""Files of every version of the package can be loaded by this one.

`python tests/test_saved_files.py` writes the file of the present version; once it is released, that file never changes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import rehearse
from rehearse import ClassBalancedMemory, DarkExperience, Monitor, MostInterfered, Replay, RunningScaler
from rehearse.checkpoint import read_state
from rehearse.transforms import Crop
from sameness import assert_same

SAVED = Path(__file__).parent / "saved_by"
VERSIONS = sorted(path.name for path in SAVED.glob("[0-9]*"))


def build() -> Monitor:
    """A learner with as many parts as fit together."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Dropout(0.1), nn.Linear(4, 2))
    learner = Replay(
        model, torch.optim.Adam(model.parameters(), 0.01), ClassBalancedMemory(12), MostInterfered(8), budget=4,
        loss=DarkExperience(), augment=Crop(1), average=0.1, prepare=RunningScaler(),
    )  # fmt: skip
    return Monitor(learner, share=0.3, capacity=9, every=20, by=["site"])


def observe(monitor: Monitor, batches: range) -> None:
    for number in batches:
        x, y = samples(number)
        weight, sites = torch.arange(6) + 0.5, torch.arange(6) % 2
        monitor.observe(x, y, number // 5, id=[f"{number}-{i}" for i in range(6)], weight=weight, site=sites)


def samples(number: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(6, 3, 3, generator=torch.Generator().manual_seed(number))
    return x, (x.sum((1, 2)) > 0).long()


def test_the_present_version_has_a_file():
    assert rehearse.__version__ in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_a_file_of_each_version_is_loaded_and_the_learner_goes_on(version):
    monitor, content = build(), read_state(SAVED / version)
    assert content["package"] == version
    rehearse.load(SAVED / version, into=monitor)
    learner, stored = monitor.learner, content["state"]["monitored"]
    assert_same(dict(learner.model.state_dict()), stored["network"]["model"])
    assert_same(learner.memory.state_dict()["x"], stored["memory"]["x"])
    assert (monitor.report()["samples"], monitor.report()["looks"], len(learner.memory)) == (60, 2, 12)
    assert learner.network.prepare.count == learner.samples_observed
    observe(monitor, range(10, 12))
    assert monitor.report()["samples"] == 72
    held = len(learner.memory) + len(monitor.held)
    assert monitor.forget(ids=[f"{number}-{i}" for number in range(12) for i in range(6)]) == held


if __name__ == "__main__":
    written = build()
    observe(written, range(10))
    rehearse.save(written, SAVED / rehearse.__version__)
