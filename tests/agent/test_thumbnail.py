"""A picture on the terminal: by which means, at which size, and that no byte of its file reaches the terminal."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, PngImagePlugin
from rich.console import Console

from m3_tools.base import PictureBlock
from m3_tools.screenshot.decode import read_picture
from m3_tools.screenshot.picture import keep
from m3agent.errors import M3Error
from m3agent.events import Notice, ToolEnded
from m3agent.settings import load_settings
from m3agent.ui.graphics import Graphics, detect
from m3agent.ui.sixel import sixel
from m3agent.ui.terminal import TerminalView
from m3agent.ui.thumbnail import MAX_COLUMNS, MAX_ROWS, fit

HOSTILE = "\x1b]0;owned\x07\x1b[2J"
RED, BLUE = (255, 0, 0), (0, 0, 255)


@pytest.fixture
def block(tmp_path: Path) -> PictureBlock:
    """A picture, half red and half blue, whose file holds escape sequences in its name, its text and behind its end."""
    image = Image.new("RGB", (400, 200), RED)
    image.paste(BLUE, (200, 0, 400, 200))
    info = PngImagePlugin.PngInfo()
    info.add_text("Comment", HOSTILE)
    file = tmp_path / f"a{HOSTILE.replace('/', '')}.png"
    image.save(file, pnginfo=info)
    with file.open("ab") as end:
        end.write(HOSTILE.encode())
    return keep(read_picture(file), tmp_path / "kept", "image")


def drawn(block: PictureBlock, thumbnails: Graphics, *, width: int = 80, height: int = 30) -> str:
    file = io.StringIO()
    console = Console(
        file=file, width=width, height=height, force_terminal=True, color_system="truecolor", _environ={},
        markup=False, highlight=False, emoji=False,
    )  # fmt: skip
    view = TerminalView(console, thumbnails=thumbnails)
    view(ToolEnded(call_id="1", name="screenshot", is_error=False, duration_s=0.0, text="", display=(block,)))
    view(Notice(text="seen", pictures=(block,)))
    view.close()
    return file.getvalue()


@pytest.mark.parametrize(
    ("environment", "graphics"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "iterm"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "iterm"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "xterm-256color"}, "blocks"),
        ({"TERM": "tmux-256color", "TMUX": "/tmp/tmux", "KITTY_WINDOW_ID": "1"}, "blocks"),
        ({"TERM": "xterm-kitty", "NO_COLOR": "1"}, "off"),
        ({"TERM": "dumb"}, "off"),
        ({}, "off"),
    ],
)
def test_the_environment_tells_what_a_terminal_shows(environment: dict[str, str], graphics: Graphics) -> None:
    assert detect(environment) == graphics


def test_a_setting_and_an_option_go_before_and_no_color_before_both(tmp_path: Path) -> None:
    environ = {"M3_HOME": str(tmp_path), "TERM": "xterm-kitty"}
    assert load_settings(environ=environ).thumbnails == "kitty"
    assert load_settings(environ=environ, thumbnails="off").thumbnails == "off"
    (tmp_path / "config.toml").write_text('thumbnails = "blocks"\n')
    assert load_settings(environ=environ).thumbnails == "blocks"
    assert load_settings(environ={**environ, "NO_COLOR": "1"}).thumbnails == "off"
    (tmp_path / "config.toml").write_text('thumbnails = "huge"\n')
    with pytest.raises(M3Error, match="thumbnails must be auto, kitty"):
        load_settings(environ=environ)


def test_half_blocks_are_the_colours_of_the_picture(block: PictureBlock) -> None:
    text = drawn(block, "blocks")
    lines = [line for line in text.splitlines() if "▀" in line]
    assert len(lines) == 2 * 10  # 40 characters wide, and half as high as wide, twice
    assert all(line.count("▀") == 40 for line in lines)
    assert "38;2;255;0;0" in lines[3]
    assert "48;2;0;0;255" in lines[3]


@given(st.integers(1, 2016), st.integers(1, 2016), st.integers(1, MAX_COLUMNS), st.integers(1, MAX_ROWS))
def test_a_thumbnail_fits_and_touches_a_side(width: int, height: int, columns: int, rows: int) -> None:
    fitted = fit((width, height), columns, rows)
    assert 1 <= fitted[0] <= columns
    assert 1 <= fitted[1] <= rows
    assert fitted[0] == columns or fitted[1] == rows


def test_kitty_and_iterm_get_the_picture_encoded_by_us(block: PictureBlock) -> None:
    pieces = re.findall(r"\x1b_G([^;]*);([A-Za-z0-9+/=]*)\x1b\\", drawn(block, "kitty"))
    first = [number for number, (head, _) in enumerate(pieces) if "a=T" in head]
    assert len(first) == 2
    assert all(len(data) <= 4096 for _, data in pieces)
    assert all("q=2" in pieces[number][0] for number in first)  # else the terminal types its answer into the draft
    whole = [base64.b64decode("".join(data for _, data in pieces[: first[1]]))]
    whole += [base64.b64decode(found) for found in re.findall(r"File=[^:]*:([^\x07]*)\x07", drawn(block, "iterm"))]
    assert len(whole) == 3
    for data in whole:
        with Image.open(io.BytesIO(data)) as image:
            assert image.convert("RGB").getpixel((2, 2)) == RED


def from_sixel(text: str) -> Image.Image:
    """A small decoder."""
    found = re.fullmatch(r'\x1bP0;1;0q"1;1;(\d+);(\d+)(.*)\x1b\\', text, re.DOTALL)
    assert found is not None
    image = Image.new("RGB", (int(found[1]), int(found[2])), (1, 2, 3))
    colours: dict[str, tuple[int, int, int]] = {}
    x = top = 0
    colour = ""
    for number, defined, count, dots, move in re.findall(
        r"#(\d+)(?:;2;(\d+;\d+;\d+))?|(?:!(\d+))?([?-~])|([$-])", found[3]
    ):
        if defined:
            red, green, blue = (round(int(part) * 255 / 100) for part in defined.split(";"))
            colours[number] = (red, green, blue)
        elif number:
            colour = number
        elif dots:
            for _ in range(int(count or 1)):
                for row in range(6):
                    if (ord(dots) - 63) >> row & 1:
                        image.putpixel((x, top + row), colours[colour])
                x += 1
        else:
            x, top = 0, top + 6 * (move == "-")
    return image


def test_sixel_draws_every_pixel() -> None:
    image = Image.new("RGB", (37, 20), RED)
    image.paste(BLUE, (5, 3, 30, 17))
    image.putpixel((36, 19), (0, 255, 0))
    assert from_sixel(sixel(image)).tobytes() == image.tobytes()


@pytest.mark.parametrize("graphics", ["blocks", "kitty", "iterm", "sixel", "off"])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (12, 7), (5, 5)])
def test_no_byte_of_a_hostile_file_reaches_the_terminal(
    block: PictureBlock, graphics: Graphics, width: int, height: int
) -> None:
    text = drawn(block, graphics, width=width, height=height)
    for sequence in ("\x1b]0", "owned\x07", "\x1b[2J"):
        assert sequence not in text
    ours = re.sub(r"\x1b_G[^\x1b]*\x1b\\|\x1b\]1337;File=[^\x07\x1b]*\x07|\x1bP0;1;0q[^\x1b]*\x1b\\|\x1b[78]", "", text)
    assert not re.search(r"\x1b(?!\[[0-9;?]*[A-Za-z])", ours)


@pytest.mark.parametrize("data", [b"", b"\x1b]0;owned\x07", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, None])
def test_a_file_that_is_gone_or_damaged_shows_nothing(tmp_path: Path, data: bytes | None) -> None:
    file = tmp_path / "x.png"
    if data is not None:
        file.write_bytes(data)
    text = drawn(PictureBlock(title="x", path=str(file), width=9, height=9), "blocks")
    assert "▀" not in text
    assert "owned" not in text
