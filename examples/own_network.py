"""Your own network on the command line: `rehearse run er-mir --network wide --import own_network.py`."""

import math

from torch import nn

from rehearse.lab.networks import NETWORKS


def wide(classes: int, shape: tuple[int, ...]) -> nn.Module:
    """One wide hidden layer with layer normalization, for inputs of any shape."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), 800), nn.LayerNorm(800), nn.GELU(), nn.Linear(800, classes)
    )


NETWORKS["wide"] = wide

if __name__ == "__main__":
    from rehearse.lab.cli.app import app

    app(["run", "er-mir", "--network", "wide", "--import", __file__, "--stream", "split-mnist-5k", "--seeds", "1"])
