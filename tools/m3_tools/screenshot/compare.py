"""Two pictures of the same thing: what changed, as regions and as a picture.

They are aligned by their upper left corner. Where their heights differ, something was inserted or taken out: rows that
are equal at the top and at the bottom stand for themselves, and what lies between is compared.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

from m3_tools.screenshot.picture import Picture

SAME_WITHIN = 8
"""A colour may differ by so much, of 255, and counts as equal: rendering is not exact everywhere."""
TILE = 16
"""Changes nearer than about this many pixels are one region."""
MAX_REGIONS = 20
_RED = (230, 0, 60)

Pixels = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True, order=True)
class Region:
    """A rectangle of the after-picture, in pixels."""

    x: int
    y: int
    width: int
    height: int

    def __str__(self) -> str:
        return f"{self.width}x{self.height} at {self.x},{self.y}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparison:
    """What changed. `regions` are the largest first, at most `MAX_REGIONS` of `num_regions`."""

    regions: tuple[Region, ...]
    num_regions: int
    changed_share: float
    """Part of the after-picture, 0 to 1."""
    difference: Picture
    """The after-picture, pale, with the changes in colour and framed."""

    @property
    def text(self) -> str:
        """One line. Sizes and places are in pixels."""
        if not self.num_regions:
            return "nothing changed"
        more = self.num_regions - len(self.regions)
        listed = "; ".join(map(str, self.regions)) + (f"; and {more} smaller" if more else "")
        count = "1 region" if self.num_regions == 1 else f"{self.num_regions} regions"
        return f"{count} changed, {100 * self.changed_share:.1f} % of the picture: {listed}"


def compare(before: Picture, after: Picture) -> Comparison:
    """What of `after` is not as in `before`."""
    old, new = _pixels(before), _pixels(after)
    changed = _changed(old, new)
    regions = _regions(changed)
    return Comparison(
        regions=tuple(regions[:MAX_REGIONS]),
        num_regions=len(regions),
        changed_share=float(changed.mean()),
        difference=_difference(new, changed, regions[:MAX_REGIONS]),
    )


def _pixels(picture: Picture) -> Pixels:
    with Image.open(io.BytesIO(picture.data), formats=["PNG", "JPEG"]) as image:
        return np.asarray(image.convert("RGB"))


def _changed(old: Pixels, new: Pixels) -> Mask:
    """[H, W] of the new picture: True where a pixel is not as it was. What the old picture lacks is changed."""
    changed = np.ones(new.shape[:2], dtype=bool)
    width = min(old.shape[1], new.shape[1])
    top = min(old.shape[0], new.shape[0])
    bottom = 0
    if old.shape[0] != new.shape[0]:
        top = _equal_rows(old[:, :width], new[:, :width])
        bottom = min(_equal_rows(old[::-1, :width], new[::-1, :width]), min(len(old), len(new)) - top)
    middle = min(len(old), len(new)) - bottom
    changed[:middle, :width] = _differ(old[:middle, :width], new[:middle, :width])
    if bottom:
        changed[-bottom:, :width] = False
    if len(old) > len(new):
        changed[max(0, middle - 1) : middle + 1] = True  # the seam where rows were taken out
    if old.shape[1] > new.shape[1]:
        changed[:, -1] = True
    return changed


def _equal_rows(old: Pixels, new: Pixels) -> int:
    """How many rows from the first on are equal."""
    rows = min(len(old), len(new))
    unequal = _differ(old[:rows], new[:rows]).any(axis=1)
    return int(unequal.argmax()) if unequal.any() else rows


def _differ(old: Pixels, new: Pixels) -> Mask:
    result: Mask = (np.abs(old.astype(np.int16) - new) > SAME_WITHIN).any(axis=2)
    return result


def _regions(changed: Mask) -> list[Region]:
    """The changes in groups of touching tiles, each with the box around its pixels; the largest first."""
    height, width = changed.shape
    rows, columns = -(-height // TILE), -(-width // TILE)
    padded = np.zeros((rows * TILE, columns * TILE), dtype=bool)
    padded[:height, :width] = changed
    tiles = padded.reshape(rows, TILE, columns, TILE).any(axis=(1, 3))
    left = {(int(row), int(column)) for row, column in np.argwhere(tiles)}
    regions = []
    while left:
        pending = [left.pop()]
        group = list(pending)
        while pending:
            row, column = pending.pop()
            near = {(row + down, column + right) for down in (-1, 0, 1) for right in (-1, 0, 1)} & left
            left -= near
            pending += near
            group += near
        regions.append(_box(changed, group))
    return sorted(regions, key=lambda region: (-region.width * region.height, region))


def _box(changed: Mask, tiles: Sequence[tuple[int, int]]) -> Region:
    """The smallest box around the changed pixels of these tiles."""
    points = []
    for row, column in tiles:
        corner = np.array((row * TILE, column * TILE))
        inside = corner + np.argwhere(changed[corner[0] : corner[0] + TILE, corner[1] : corner[1] + TILE])
        points += [inside.min(axis=0), inside.max(axis=0)]
    (top, left), (bottom, right) = np.min(points, axis=0), np.max(points, axis=0)
    return Region(int(left), int(top), int(right - left + 1), int(bottom - top + 1))


def _difference(new: Pixels, changed: Mask, regions: Sequence[Region]) -> Picture:
    grey = new.mean(axis=2, keepdims=True)
    pale = (255 - (255 - grey) * 0.35).repeat(3, axis=2).astype(np.uint8)
    pale[changed] = (new[changed] * 0.5 + np.array(_RED) * 0.5).astype(np.uint8)
    image = Image.fromarray(pale)
    draw = ImageDraw.Draw(image)
    for region in regions:
        right, bottom = region.x + region.width, region.y + region.height
        draw.rectangle((region.x - 3, region.y - 3, right + 2, bottom + 2), outline=_RED, width=2)
    encoded = io.BytesIO()
    image.save(encoded, "PNG")
    return Picture(
        name="difference", media_type="image/png", data=encoded.getvalue(), width=image.width, height=image.height
    )
