"""How large an image is made before the tower sees it, and so how many tokens it costs. Sides are in pixels.

Two rules are in use for M3. `AreaRule` is that of the released image processor, and also resizes the frames of a video.
`LongSideRule` keeps nine times as much of a screenshot; it is the default here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from m3_model.vision.config import VisionConfig

MOST_UNEQUAL = 200
"""An image this many times as long as it is wide is refused."""


class ResizeRule(Protocol):
    """Gives the new height and width of an image; both are multiples of `token_size`."""

    def __call__(self, height: int, width: int, token_size: int) -> tuple[int, int]:
        """Errors: ValueError for an image that is too long for its width."""
        ...


@dataclass(frozen=True, kw_only=True)
class AreaRule:
    """Keep the shape and bring the area between two limits, in square pixels."""

    min_pixels: int = 3136
    max_pixels: int = 451_584

    def __call__(self, height: int, width: int, token_size: int) -> tuple[int, int]:
        _check(height, width)
        new_height, new_width = (round(side / token_size) * token_size for side in (height, width))
        area = new_height * new_width
        if area > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            sides = (math.floor(side / shrink / token_size) * token_size for side in (height, width))
            new_height, new_width = (max(side, token_size) for side in sides)
        elif area < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            new_height, new_width = (math.ceil(side * grow / token_size) * token_size for side in (height, width))
        return new_height, new_width


@dataclass(frozen=True, kw_only=True)
class LongSideRule:
    """Keep the size as far as the sides stay between two limits: shrink a long side first, else enlarge a short one.

    Errors: ValueError for limits that no image can have.
    """

    long_side: int = 2016
    short_side: int = 112

    def __post_init__(self) -> None:
        if not 0 < self.short_side <= self.long_side <= 3584:
            raise ValueError(
                f"the long side is {self.long_side} and the short side {self.short_side} pixels; "
                "give a long side up to 3584 and a short side up to the long one"
            )

    def __call__(self, height: int, width: int, token_size: int) -> tuple[int, int]:
        _check(height, width)
        longest, shortest = max(height, width), min(height, width)
        scale = 1.0
        if longest > self.long_side:
            scale = self.long_side / longest
        elif shortest < self.short_side:
            scale = min(self.short_side / shortest, self.long_side / longest)
        most = self.long_side // token_size
        tokens = (min(max(round(side * scale / token_size), 1), most) for side in (height, width))
        new_height, new_width = (count * token_size for count in tokens)
        return new_height, new_width


def default_rule(config: VisionConfig) -> ResizeRule:
    """For images: the long side that the model was made for."""
    return LongSideRule(long_side=config.image_size, short_side=min(112, config.image_size))


def num_tokens(height: int, width: int, config: VisionConfig) -> int:
    """Tokens of a resized image, or of one patch in time of a resized video."""
    return (height // config.token_size) * (width // config.token_size)


def _check(height: int, width: int) -> None:
    if min(height, width) < 1 or max(height, width) > MOST_UNEQUAL * min(height, width):
        raise ValueError(
            f"{width} x {height} pixels: one side may be at most {MOST_UNEQUAL} times as long as the other"
        )
