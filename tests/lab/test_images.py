"""Pictures: every input where it belongs, pixel by pixel."""

import numpy as np
import pytest
import torch

from rehearse.errors import InvalidInput
from rehearse.lab.measurements import Retrieved
from rehearse.lab.report.images import GAP, grid, reconstructions_figure, retrieved_figure

Image = pytest.importorskip("PIL.Image")


def test_a_grid_holds_each_picture_in_its_place():
    images = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 1, 4, 5) / 119
    pixels = grid(list(images))
    assert pixels.shape == (2 * (4 + GAP) + GAP, 3 * (5 + GAP) + GAP, 3)
    for i in range(2):
        for j in range(3):
            top, left = GAP + i * (4 + GAP), GAP + j * (5 + GAP)
            expected = (images[i, j, 0] * 255).round().numpy()
            assert np.array_equal(pixels[top : top + 4, left : left + 5, 0], expected)
            assert np.array_equal(pixels[top : top + 4, left : left + 5, 2], expected)
    assert (pixels[:GAP] == 255).all()


def test_values_are_stretched_from_their_range_and_cut_to_it():
    pixels = grid([torch.tensor([[-1.0, 1.0, 0.0, 3.0]])], (-1, 1))
    assert pixels[GAP : GAP + 2, GAP : GAP + 2, 0].tolist() == [[0, 255], [128, 255]]


def test_colours_and_shorter_rows():
    pixels = grid([torch.zeros(2, 3, 4, 4), torch.zeros(1, 3, 4, 4)])
    assert (pixels[-GAP - 4 : -GAP, -GAP - 4 : -GAP] == 255).all()  # nothing there: paper
    assert (pixels[GAP : GAP + 4, -GAP - 4 : -GAP] == 0).all()


@pytest.mark.parametrize("rows", [[], [torch.rand(2, 5)], [torch.rand(2, 2, 4, 4)], [torch.rand(0, 4)]])
def test_what_is_no_picture_is_refused(rows):
    with pytest.raises(InvalidInput):
        grid(rows)


def test_the_figures_are_written(tmp_path):
    x = torch.rand(10, 1, 8, 8)
    files = [
        reconstructions_figure(x, x, tmp_path / "new" / "reconstructions.png", columns=5),
        retrieved_figure(Retrieved(x, x.repeat(4, 1, 1, 1), x.repeat(2, 1, 1, 1)), tmp_path / "retrieved.png"),
        retrieved_figure(Retrieved(x, None, None), tmp_path / "incoming.png"),
    ]
    heights = []
    for file in files:
        with Image.open(file) as picture:
            heights.append(picture.height)
            margin = np.asarray(picture)[:, :8]  # before the labels: the page shows through, light or dark
            assert picture.mode == "RGBA"
            assert not margin[..., 3].any()
    assert heights == [2 * (rows * (8 + GAP) + GAP) for rows in (4, 5, 1)]
