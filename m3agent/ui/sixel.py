"""A picture as Sixel: bands of six rows, in each of which every colour draws its dots."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

COLOURS = 64
"""Some terminals have no more registers."""
BAND = 6


def sixel(image: Image.Image) -> str:
    """The escape sequence that draws the picture from the cursor on; of printable characters but for its two ends."""
    reduced = image.convert("RGB").quantize(COLOURS)
    palette = reduced.getpalette() or []
    pixels = np.asarray(reduced)
    height, width = pixels.shape
    used = np.unique(pixels)
    parts = [f'\x1bP0;1;0q"1;1;{width};{height}']
    for colour in used:
        red, green, blue = (round(value * 100 / 255) for value in palette[3 * colour : 3 * colour + 3])
        parts.append(f"#{colour};2;{red};{green};{blue}")
    bits = 1 << np.arange(BAND)
    for top in range(0, height, BAND):
        band = pixels[top : top + BAND]
        rows = bits[: len(band), None]
        drawn = []
        for colour in np.unique(band):
            drawn.append(f"#{colour}{_repeated((rows * (band == colour)).sum(axis=0).tolist())}")
        parts.append("$".join(drawn) + "-")
    return "".join(parts) + "\x1b\\"


def _repeated(columns: list[int]) -> str:
    parts = []
    for value, group in itertools.groupby(columns):
        count = len(list(group))
        dots = chr(63 + value)
        parts.append(f"!{count}{dots}" if count > 3 else dots * count)
    return "".join(parts)
