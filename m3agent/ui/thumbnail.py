"""A small version of a picture in the terminal.

Only pixels of a picture that was decoded and saved by m3 come here, encoded anew: no byte of a stranger's file is
written to the terminal.
"""

from __future__ import annotations

import base64
import fcntl
import io
import struct
import sys
import termios
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import ControlType, Segment
from rich.style import Style

from m3_tools.base import PictureBlock
from m3_tools.screenshot.picture import LONGEST_SIDE
from m3agent.ui.graphics import Graphics

if TYPE_CHECKING:
    from PIL import Image

MAX_COLUMNS, MAX_ROWS, INDENT = 40, 12, 4
CELL = (8, 16)
"""Pixels of a character where the terminal does not say; a picture for larger ones only stays smaller."""
_CHUNK = 4096
"""Characters of a picture in one of Kitty's sequences."""


class Thumbnail:
    """Shows the saved picture in at most `MAX_COLUMNS` x `MAX_ROWS` characters; nothing where it cannot be read."""

    def __init__(self, block: PictureBlock, graphics: Graphics):
        self._block, self._graphics = block, graphics

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        image = read_small(self._block.path)
        if image is None or self._graphics == "off" or not console.is_terminal:
            return
        columns, rows = fit(image.size, min(MAX_COLUMNS, options.max_width - INDENT), min(MAX_ROWS, console.height - 6))
        if min(columns, rows) < 1:
            return
        if self._graphics == "blocks":
            yield from blocks(image, columns, rows)
            return
        width, height = cell_size(console)
        image = image.resize((columns * width, rows * height))
        draw = {"kitty": kitty, "iterm": iterm, "sixel": _sixel}[self._graphics]
        # Room first, which may scroll; then the picture from the upper end of that room, and back below it.
        yield from [Segment.line()] * rows
        sequence = f"\x1b[{rows}A\x1b[{INDENT}C\x1b7{draw(image, columns, rows)}\x1b8\r\x1b[{rows}B"
        yield Segment(sequence, None, [(ControlType.CARRIAGE_RETURN,)])


def read_small(path: str) -> Image.Image | None:
    """The picture at a size that any thumbnail can be made of; None if it is not one that m3 saved."""
    from PIL import Image

    try:
        with Image.open(path, formats=["PNG", "JPEG"]) as image:
            if max(image.size) > LONGEST_SIDE:
                return None
            image.draft("RGB", (640, 640))
            small = image.convert("RGB")
            small.thumbnail((640, 640))
            return small
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):  # a file that is gone or damaged
        return None


def fit(size: tuple[int, int], columns: int, rows: int) -> tuple[int, int]:
    """The largest box of characters, about twice as high as wide, with the picture's proportions."""
    width, height = size
    scale = min(columns / width, 2 * rows / height)
    return min(columns, max(1, round(width * scale))), min(rows, max(1, round(height * scale / 2)))


def blocks(image: Image.Image, columns: int, rows: int) -> Iterator[Segment]:
    """Two pixels in each character: its upper half in the colour of the text, the rest in that of the background."""
    small = image.resize((columns, 2 * rows))
    for row in range(0, 2 * rows, 2):
        yield Segment(" " * INDENT)
        for column in range(columns):
            upper, lower = ("#{:02x}{:02x}{:02x}".format(*_rgb(small, column, row + half)) for half in (0, 1))
            yield Segment("▀", Style(color=upper, bgcolor=lower))
        yield Segment.line()


def _rgb(image: Image.Image, x: int, y: int) -> tuple[int, ...]:
    pixel = image.getpixel((x, y))
    assert isinstance(pixel, tuple), "an RGB picture"
    return tuple(int(value) for value in pixel)


def kitty(image: Image.Image, columns: int, rows: int) -> str:
    """Kitty's protocol; the terminal scales to the box and answers nothing."""
    data = _png(image)
    pieces = [data[i : i + _CHUNK] for i in range(0, len(data), _CHUNK)]
    head = f"a=T,f=100,q=2,C=1,c={columns},r={rows},"
    parts = []
    for number, piece in enumerate(pieces):
        more = int(number < len(pieces) - 1)
        parts.append(f"\x1b_G{head if not number else ''}m={more};{piece}\x1b\\")
    return "".join(parts)


def iterm(image: Image.Image, columns: int, rows: int) -> str:
    """iTerm's protocol; the terminal scales to the box."""
    options = f"inline=1;width={columns};height={rows};preserveAspectRatio=0"
    return f"\x1b]1337;File={options}:{_png(image)}\x07"


def _sixel(image: Image.Image, columns: int, rows: int) -> str:
    from m3agent.ui.sixel import sixel

    return sixel(image)


def _png(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def cell_size(console: Console) -> tuple[int, int]:
    """Pixels of one character, as the terminal says, or `CELL`."""
    try:
        answer = fcntl.ioctl(console.file.fileno(), termios.TIOCGWINSZ, b"\0" * 8)
    except (OSError, ValueError):
        return CELL
    rows, columns, width, height = struct.unpack("HHHH", answer)
    if not (rows and columns and width and height):
        return CELL
    return min(32, max(4, width // columns)), min(64, max(8, height // rows))


if __name__ == "__main__":
    shown = PictureBlock(title=sys.argv[1], path=sys.argv[1], width=0, height=0)
    for way in ("blocks", "kitty", "iterm", "sixel"):
        Console().print(way, Thumbnail(shown, way))
