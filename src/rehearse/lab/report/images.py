"""Pictures of what a generator imagines, as in Figures 2 and 3 of the paper: a grid of inputs, a label beside each row.

Needs Pillow (the extra ``lab``).
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ...errors import InvalidInput
from ...files import replace_file
from ..extras import needs
from ..measurements import Retrieved

GAP: Final = 2  # pixels between pictures, before scaling
SCALE: Final = 2
LETTERS: Final = 16  # pixels, of the labels
QUIET: Final = (125, 125, 125)  # legible on white and on black: the margin is transparent
ROWS_EACH: Final = 2  # rows of retrieved inputs for each network, as in Figure 3


def reconstructions_figure(
    x: Tensor,
    reconstructions: Tensor,
    path: Path | str,
    *,
    columns: int = 10,
    value_range: tuple[float, float] = (0, 1),
) -> Path:
    """Inputs, and under each what the generator makes of it: `measurements.reconstruct`."""
    rows = []
    for start in range(0, len(x), columns):
        rows.append(("input", x[start : start + columns]))
        rows.append(("reconstruction", reconstructions[start : start + columns]))
    return write_grid(rows, path, value_range=value_range)


def retrieved_figure(retrieved: Retrieved, path: Path | str, *, value_range: tuple[float, float] = (0, 1)) -> Path:
    """The incoming batch, and under it what was replayed for the classifier and for the generator.

    ``retrieved`` is what `measurements.retrieve` returns, whose rows are in no order of interference. Where the search
    started from the incoming batch's codes, what stands under an incoming row started from it.
    """
    width = len(retrieved.incoming)
    rows = [("incoming", retrieved.incoming)]
    for name, images in (("classifier", retrieved.classifier), ("generator", retrieved.generator)):
        if images is not None:
            turns = [images[start : start + width] for start in range(0, len(images), width)]
            rows += [(name, turn) for turn in turns[:ROWS_EACH]]
    return write_grid(rows, path, value_range=value_range)


def write_grid(
    rows: Sequence[tuple[str, Tensor]], path: Path | str, *, value_range: tuple[float, float] = (0, 1)
) -> Path:
    """A picture file of labelled rows; the format is that of the file's name."""
    with needs("Pillow", "lab"):
        from PIL import Image, ImageDraw, ImageFont
    path = Path(path)
    pixels = grid([images for _, images in rows], value_range)
    pixels = pixels.repeat(SCALE, axis=0).repeat(SCALE, axis=1)
    font = ImageFont.load_default(LETTERS)
    margin = round(max(font.getlength(label) for label, _ in rows)) + LETTERS
    picture = Image.new("RGBA", (pixels.shape[1] + margin, pixels.shape[0]), (255, 255, 255, 0))
    picture.paste(Image.fromarray(pixels), (margin, 0))
    draw, height = ImageDraw.Draw(picture), pixels.shape[0] / len(rows)
    for number, (label, _) in enumerate(rows):
        draw.text((LETTERS / 2, (number + 0.5) * height), label, QUIET, font, anchor="lm")
    path.parent.mkdir(parents=True, exist_ok=True)
    file = io.BytesIO()
    picture.save(file, Image.registered_extensions()[path.suffix.lower()])
    replace_file(path, file.getbuffer())
    return path


def grid(rows: Sequence[Tensor], value_range: tuple[float, float] = (0, 1)) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Rows of inputs as one array of pixels (height, width, 3); rows may be of different lengths."""
    if not rows or not any(len(row) for row in rows):
        raise InvalidInput("there is nothing to show: no rows of inputs")
    low, high = value_range
    pictures = [[_picture(image) for image in row.detach().float().cpu()] for row in rows]
    height, width, _ = next(picture for row in pictures for picture in row).shape
    across = max(len(row) for row in pictures)
    canvas = torch.ones((height + GAP) * len(rows) + GAP, (width + GAP) * across + GAP, 3)
    for i, row in enumerate(pictures):
        for j, picture in enumerate(row):
            top, left = GAP + i * (height + GAP), GAP + j * (width + GAP)
            canvas[top : top + height, left : left + width] = (picture - low) / (high - low)
    levels: np.ndarray[Any, np.dtype[np.uint8]] = canvas.clamp(0, 1).mul(255).round().to(torch.uint8).numpy()
    return levels


def _picture(image: Tensor) -> Tensor:
    """One input as (height, width, 3): an image, grey or in colour, or a flat row of so many pixels squared."""
    if image.ndim == 1:
        side = math.isqrt(len(image))
        if side * side != len(image):
            raise InvalidInput(f"a row of {len(image)} numbers is no square picture")
        image = image.reshape(1, side, side)
    elif image.ndim == 2:
        image = image[None]
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise InvalidInput(f"inputs of shape {tuple(image.shape)} are no pictures: (1 or 3, height, width) are")
    return image.expand(3, -1, -1).permute(1, 2, 0)
