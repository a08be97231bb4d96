"""Pictures in a chat at a terminal: pasted, dropped, on the clipboard; shown, named in the draft, sent with it."""

from __future__ import annotations

import base64
import io
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from m3_tools.screenshot.decode import decode
from m3agent.chat.pictures import Pictures
from m3agent.messages import assistant
from tests.agent.chat.terminal import Terminal
from tests.contracts.played_server import PlayedServer

Talk = Callable[..., tuple[Terminal, PlayedServer]]
XCLIP = '#!/bin/sh\n[ "$5" = TARGETS ] && { echo image/png; exit 0; }\nexec cat %s\n'


@pytest.fixture
def bug(tmp_path: Path) -> Path:
    file = tmp_path / "the bug.png"
    Image.new("RGB", (300, 150), (200, 0, 0)).save(file)
    return file


@pytest.fixture
def desktop(tmp_path: Path, bug: Path) -> dict[str, str]:
    """The variables of a session with a clipboard that holds the picture."""
    folder = tmp_path / "desktop"
    folder.mkdir()
    xclip = folder / "xclip"
    xclip.write_text(XCLIP % shlex.quote(str(bug)))
    xclip.chmod(0o755)
    return {
        "DISPLAY": ":7", "WAYLAND_DISPLAY": "", "SSH_CONNECTION": "", "SSH_TTY": "", "SSH_CLIENT": "",
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip


def sent(server: PlayedServer) -> tuple[list[tuple[int, int]], str]:
    """The sizes of the pictures in the last message, and its text."""
    content: Any = server.requests[-1]["messages"][-1]["content"]
    if isinstance(content, str):
        return [], content
    sizes, text = [], ""
    for part in content:
        if part["type"] == "text":
            text += part["text"]
        else:
            data = base64.b64decode(part["image_url"]["url"].partition(",")[2])
            sizes.append(Image.open(io.BytesIO(data)).size)
    return sizes, text


def test_the_clipboard_comes_by_a_key_or_a_command_and_is_shown(talk: Talk, desktop: dict[str, str]) -> None:
    terminal, server = talk(assistant("A red box."), assistant("Two."), **desktop)
    terminal.type("what is \x16?")
    terminal.wait_for("clipboard: 300 × 150, about")
    terminal.wait_for("▀" * 40)
    terminal.wait_for("ask> what is [picture 1: clipboard]?")
    terminal.press("Enter")
    terminal.wait_for("A red box.")
    assert sent(server) == ([(300, 150)], "what is [picture 1: clipboard]?")
    terminal.type("/image\r")
    terminal.wait_for("clipboard: 300 × 150", times=2)
    terminal.type("and now \x1bv")
    terminal.wait_for("clipboard: 300 × 150", times=3)
    terminal.press("Enter")
    terminal.wait_for("Two.")
    assert sent(server) == ([(300, 150)] * 2, "and now [picture 2: clipboard]")


def test_dropped_files_wait_for_nobody_and_are_sent_with_the_draft(talk: Talk, bug: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.png"
    Image.new("RGB", (40, 20)).save(other)
    terminal, server = talk(assistant("Seen."))
    terminal.paste(f"{shlex.quote(str(bug))} {other}")
    terminal.type(" compare\r")  # before they are read
    terminal.wait_for("Seen.")
    assert sent(server) == ([(300, 150), (40, 20)], "[picture 1: the bug.png] [picture 2: other.png] compare")


def test_what_cannot_be_read_stands_in_the_draft_as_it_was_pasted(talk: Talk, tmp_path: Path) -> None:
    page = tmp_path / "page.png"
    page.write_text("<!doctype html>")
    terminal, server = talk(assistant("Seen."), PATH="/usr/bin:/bin", DISPLAY="", WAYLAND_DISPLAY="", SSH_TTY="/dev/x")
    terminal.type("see ")
    terminal.paste(str(page))
    terminal.wait_for("it is a web page, not an image")
    terminal.type(" here \x16")
    terminal.wait_for("cannot be read over SSH")
    terminal.type("now\r")
    terminal.wait_for("Seen.")
    assert sent(server) == ([], f"see {page} here now")


def test_a_name_stands_for_its_picture_wherever_it_goes() -> None:
    pictures, shown = Pictures(), []
    for size in (1, 2):
        data = io.BytesIO()
        Image.new("RGB", (size, size)).save(data, "PNG")
        name = pictures.new_name(Path("a\x1b]0;x\x07\n.png"))
        assert "\x1b" not in name
        assert "\n" not in name
        shown.append((name, decode(data.getvalue(), name="a.png")))
        pictures.add(*shown[-1])
    (first, one), (second, two) = shown
    assert pictures.named_in(f"{second} and {first}, again {second}") == [two, one]
    assert pictures.named_in("[picture 9: a.png]") == []
