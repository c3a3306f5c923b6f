"""Your own stream on the command line: `rehearse run er er-mir --stream blobs --import own_stream.py`."""

from typing import Any

import torch

from rehearse.lab.streams import STREAMS, Definition, Stream, from_arrays


def blobs(*, seed: int, split_seed: int, n_tasks: int, batch_size: int, **ignored: Any) -> Stream:
    """Ten Gaussian classes in 20 dimensions, in tasks; ``split_seed`` draws the data, ``seed`` their order."""
    random = torch.Generator().manual_seed(split_seed)
    centers = 0.7 * torch.randn(10, 20, generator=random)

    def draw(each: int) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.arange(10).repeat_interleave(each)
        return centers[y] + torch.randn(len(y), 20, generator=random), y

    x, y = draw(100)
    evaluation = {"validation": draw(20), "test": draw(50)}
    return from_arrays(x, y, n_tasks=n_tasks, evaluation=evaluation, batch_size=batch_size, seed=seed, name="blobs")


STREAMS["blobs"] = Definition(
    "ten Gaussian classes in five tasks", n_tasks=5, make=blobs, settings={"capacity": 100, "lr": 0.05}
)

if __name__ == "__main__":
    from rehearse.lab.cli.app import app

    app(["run", "er", "er-mir", "--import", __file__, "--stream", "blobs", "--seeds", "2"])
