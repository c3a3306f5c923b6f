"""The matrix products of one step of GEN-MIR, and nothing else: what no program with the same arithmetic goes below.

As few as the mathematics allows: all points of a search pass together, what is the same in two passes is made once, and
the classifier's first layer is moved instead of multiplied anew at each of the updates (`SameRows`).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from literal_generative import Setting

ROWS, PIXELS, GATED, HIDDEN, SCORES = 10, 784, 800, 400, 20  # a gated layer has two products in one matrix

Shape = tuple[int, int, int]  # n × k times k × m


def _layers(
    shapes: list[tuple[int, int]], rows: int, *, inputs: bool, weights: bool, first: bool = True
) -> list[Shape]:
    """The products of rows through these layers: forward, and backward to the ``inputs`` and to the ``weights``.

    ``first`` says whether the gradient is wanted before the first layer too.
    """
    made = [(rows, into, out) for into, out in shapes]
    if inputs:
        made += [(rows, out, into) for into, out in (shapes if first else shapes[1:])]
    if weights:
        made += [(out, rows, into) for into, out in shapes]
    return made


def shapes(setting: Setting) -> Iterator[Shape]:
    points, h, z = ROWS * setting.memories, setting.hidden, setting.latent
    rows = points + ROWS
    inner = [(h, h)] * (setting.depth - 1)
    decoder, encoder = [(z, h), *inner, (h, PIXELS)], [(PIXELS, h), *inner, (h, 2 * z)]
    classifier = [(PIXELS, GATED), (HIDDEN, SCORES)]
    searched = [[*decoder, *classifier, *classifier], [*decoder, *decoder, *classifier, *encoder, *encoder]]
    for passes in searched if setting.search_steps else []:
        for _ in range(setting.search_steps):
            yield from _layers(passes, points, inputs=True, weights=False)
        yield from _layers(passes, points, inputs=False, weights=False)  # where the search has led
    if setting.search_steps:  # the foreseen steps
        yield from _layers(classifier, ROWS, inputs=True, weights=True, first=False)
        yield from _layers([*encoder, *decoder], ROWS, inputs=True, weights=True, first=False)
    yield from _layers(decoder, 2 * points, inputs=False, weights=False)
    yield from _layers(classifier, points, inputs=False, weights=False)  # labels
    yield from ((rows, PIXELS, rows), (rows, PIXELS, GATED), (GATED, rows, PIXELS))
    for _ in range(setting.updates):
        yield rows, rows, GATED
        yield from _layers([(HIDDEN, SCORES)], rows, inputs=True, weights=True)
        yield from _layers([*encoder, *decoder], rows, inputs=True, weights=True, first=False)


class Products:
    """Multiplies matrices of these shapes, one after the other; each left one of its own, each weight used again."""

    def __init__(self, setting: Setting) -> None:
        self._shapes = list(shapes(setting))
        self._held: dict[tuple[int, int], Tensor] = {}
        self.gigaflops = sum(2 * n * k * m for n, k, m in self._shapes) / 1e9

    def __call__(self, *_: object) -> None:
        with torch.no_grad():
            for n, k, m in self._shapes:
                torch.mm(self._matrix(n, k), self._matrix(k, m))

    def _matrix(self, n: int, m: int) -> Tensor:
        if (n, m) not in self._held:
            self._held[n, m] = torch.rand(n, m)
        return self._held[n, m]
