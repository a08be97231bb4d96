"""A picture that grows while it is drawn on, and remembers the text that it shows and where."""

from __future__ import annotations

import bisect
import dataclasses
import random

from PIL import Image, ImageDraw

from training.screens.fonts import Font, Split, installed, loaded

Colour = tuple[int, int, int]
Box = tuple[int, int, int, int]


@dataclasses.dataclass(frozen=True)
class Theme:
    """Colours of a surface, of text on it, of what is less important, of frames, and of what must be seen."""

    background: Colour
    text: Colour
    faint: Colour
    frame: Colour
    accent: Colour


THEMES = {
    "light": (
        Theme((255, 255, 255), (30, 30, 30), (120, 120, 120), (200, 200, 200), (0, 90, 200)),
        Theme((245, 245, 240), (50, 45, 40), (130, 125, 115), (210, 205, 195), (160, 60, 20)),
        Theme((253, 246, 227), (70, 90, 100), (140, 155, 155), (225, 215, 190), (38, 139, 210)),
    ),
    "dark": (
        Theme((30, 30, 30), (212, 212, 212), (130, 130, 130), (70, 70, 70), (86, 156, 214)),
        Theme((12, 12, 16), (230, 230, 230), (140, 140, 150), (60, 60, 70), (250, 120, 110)),
        Theme((40, 42, 54), (248, 248, 242), (130, 140, 170), (80, 82, 100), (255, 121, 198)),
    ),
}
MARKS: tuple[Colour, ...] = ((230, 0, 0), (255, 0, 200), (0, 160, 0), (255, 140, 0))


class Canvas:
    """Everything on it lies inside it: what is drawn must fit, and `fits` says before whether it does."""

    def __init__(self, rng: random.Random, split: Split, *, width: int, height: int, mono: bool):
        self.theme: Theme = rng.choice(THEMES[rng.choice(["light", "dark"])])
        self.font: Font = rng.choice(installed("mono" if mono else "ui", split))
        self.size = rng.randint(11, 20)
        self.width, self.height = width, height
        self.image = Image.new("RGB", (width, height), self.theme.background)
        self.draw = ImageDraw.Draw(self.image)
        self.shown: list[tuple[str, Box]] = []

    @property
    def line_height(self) -> int:
        return round(self.size * 1.35)

    def length(self, text: str) -> int:
        return round(loaded(self.font, self.size).getlength(text))

    def fits(self, x: int, text: str) -> bool:
        return x + self.length(text) <= self.width - 4

    def cut(self, x: int, text: str) -> str:
        """As much of the text as fits behind x."""
        if self.fits(x, text):
            return text
        return text[: bisect.bisect_left(range(len(text)), True, key=lambda n: not self.fits(x, text[: n + 1]))]

    def write(self, x: int, y: int, text: str, colour: Colour | None = None) -> Box:
        """Write a line and remember it. Returns its box."""
        box = (x, y, x + self.length(text), y + self.line_height)
        if text:
            assert max(box[2] - self.width, box[3] - self.height) <= 0, f"{text!r} does not fit at {x}, {y}"
            self.draw.text((x, y), text, fill=colour or self.theme.text, font=loaded(self.font, self.size))
            self.shown.append((text, box))
        return box

    def box(self, box: Box, fill: Colour | None = None, radius: int = 0) -> None:
        self.draw.rounded_rectangle(box, radius, fill=fill, outline=self.theme.frame)

    def mark(self, box: Box, colour: Colour, width: int) -> None:
        """A frame around what is asked for, as a person draws one."""
        left, top, right, bottom = box
        frame = (max(0, left - 4), max(0, top - 4), min(self.width - 1, right + 4), min(self.height - 1, bottom + 4))
        self.draw.rectangle(frame, outline=colour, width=width)
