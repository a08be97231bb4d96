"""Text that wants to be more than text: whatever shows it, the terminal gets nothing of it but characters."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text
from wcwidth import wcwidth

from benchmarks.terminal import Person
from m3agent.approval import Question
from m3agent.events import Event, Notice, ToolOutput, ToolStarted
from m3agent.ui.ask import approver, question
from m3agent.ui.clean import clean, visible
from m3agent.ui.completion import ChatCompleter
from m3agent.ui.plain import PlainView
from m3agent.ui.render import render
from m3agent.ui.screen import Screen
from m3agent.ui.terminal import TerminalView
from tests.agent.test_ui import events_with

TEXTS = {
    "CSI": "a\x1b[31;45;7mb\x1b[2J\x1b[3J\x1b[999A\x1b[?1049h\x1b[8;1;1tz",
    "title": "a\x1b]0;pwned\x07b\x1b]2;pwned\x1b\\z",
    "clipboard": "a\x1b]52;c;cHduZWQ=\x07b\x1b]52;c;cHduZWQ=\x9cz",
    "an OSC that never ends": "a\x1b]0;pwned\nnext line",
    "DCS, sixels, APC, PM, SOS": "a\x1bPq#0;2;0;0;0~~\x1b\\b\x1b_Gf=100;AAAA\x1b\\c\x1b^x\x1b\\d\x1bXx\x1b\\z",
    "questions to the terminal": "a\x1b[c\x1b[6n\x1b]11;?\x07\x1bZ\x05z",
    "reset, charset, alignment test": "a\x1bc\x1b(0\x1b#8\x1b7\x1b8z",
    "C1 as code points": "a\x9b2J\x9d0;pwned\x9cb\x90q\x9cc\x84\x85\x8d\x98x\x9c\x9fx\x9cz",
    "C1 as bytes": b"a\x9b2J\x9d0;pwned\x9cz".decode("utf-8", "surrogateescape"),
    "invalid UTF-8": b"a\xff\xfe\xc3(\xed\xa0\x80\xf0\x9fz".decode("utf-8", "replace"),
    "an escape in an escape": "a\x1b[\x1b[2J31m\x1b\x1b[2Jz\x1b",
    "the end of a paste": "a\x1b[201~rm -rf ~\rz",
    "bell": "a\x07\x07z",
    "backspaces": "secret\x08\x08\x08\x08\x08\x08public",
    "carriage returns": "10%\r50%\r100%\r\nz",
    "other controls": "a\x00b\x0bc\x0cd\x0e\x0fe\x7fz",
    "markup": "[bold]a[/bold] [/x] [link=http://evil]y[/link] [[ :smile: [red",
    "bidirectional": "a\u202eevil\u2066b\u2069\u200f\u061cz",
    "other line ends": "a\u2028b\u2029c\x85z",
    "without width": "a\u200bb\u2060\ufeffc\U000e0041\U000e007fd\u00ad\ufff9z",
    "emoji": "👨\u200d👩\u200d👧 ❤\ufe0f 👍🏽 🇩🇪 1\ufe0f\u20e3 🏳\ufe0f\u200d🌈z",
    "wide": "日本語のテキスト 한국어 Ｆｕｌｌ " * 12,
    "combining": "e\u0301a\u0308 " + "z" + "\u0301" * 5000,
    "Indic and Arabic": "क\u094d\u200dष नमस्ते مرحبا می\u200cخواهم ที่นี่",
    "one long line": "x" * 200_000,
    "one long wide line": "日" * 50_000,
    "many short lines": "x\n" * 20_000,
    "tabs": "a\tb\n\tc\td",
    "Markdown": "[" * 500 + "](" * 100 + "*_" * 200 + "| a | b |\n|---|---|\n| \x1b[2J | [x](javascript:x) |\n> " * 20,
}
ALLOWED = re.compile(
    r"\x1b\[(?:[\d;]*m"  # styles
    r"|\d{0,2}[ABCDK]|0?J|H(?=\x1b)"  # moves of less than a hundred places, and erasing
    r"|\?(?:1|7|12|25|1004|2004|2026)[hl]|\d q)|\r"
)
"""What Rich and prompt_toolkit themselves write."""
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff]")
by_name = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)


class Watched(pyte.Screen):
    """A terminal that refuses what only hostile text asks for."""

    def set_title(self, title: str) -> None:
        raise AssertionError(f"the title was set to {title!r}")

    set_icon_name = set_title

    def bell(self, *args: object) -> None:
        raise AssertionError("the bell rang")

    def reset(self) -> None:
        assert not hasattr(self, "began"), "the terminal was reset"
        super().reset()
        self.began = True

    def alignment_display(self) -> None:
        raise AssertionError("the screen was filled")


def check(output: str, *, width: int, height: int = 30) -> list[str]:
    """The rows that a terminal shows of an output, of which nothing may be control but what we wrote."""
    assert not CONTROL.search(ALLOWED.sub("", output)), repr(CONTROL.search(ALLOWED.sub("", output)))
    screen = Watched(width, height)
    pyte.Stream(screen).feed(output.replace("\r\n", "\n").replace("\n", "\r\n"))
    return [row.rstrip() for row in screen.display]


def drawn(shown: RenderableType, width: int) -> str:
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    console.print(shown, markup=False, emoji=False, highlight=False)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def bare(line: str) -> str:
    """The line without marks that take no place; pyte ends a text at some of them."""
    return "".join(character for character in line if wcwidth(character))


def places(text: str) -> int:
    """The width of a text as the simplest terminal counts it: by its characters, one by one."""
    return sum(max(0, wcwidth(character)) for character in text)


@by_name
def test_every_way_to_count_gives_the_same_width(text: str) -> None:
    for shown in (clean(text), visible(text)):
        assert not CONTROL.search(shown)
        for line in shown[:4000].split("\n"):
            assert cell_len(line) == places(line)


@by_name
@pytest.mark.parametrize("width", [40, 80])
def test_every_event_keeps_its_lines(text: str, width: int) -> None:
    """What a terminal shows is line by line what was drawn: nothing moved, wrapped, or went missing."""
    call = Question(tool=text[:500], arguments={"path": text[:5000], text[:50]: [text[:5000]]}, rule=text[:500])
    for shown in [*(render(event) for event in events_with(text)), question(call)]:
        if shown is not None:
            lines = [bare(line) for line in drawn(shown, width).rstrip("\n").split("\n")[-20:]]
            assert check("\n".join(lines), width=width)[: len(lines)] == [line.rstrip() for line in lines]


@by_name
def test_the_live_view_and_the_plain_view_write_characters_only(text: str) -> None:
    live = Console(file=io.StringIO(), width=60, height=20, force_terminal=True, color_system="standard")
    view, plain = TerminalView(live), io.StringIO()
    lines = PlainView(plain, tells_activity=True)
    for event in events_with(text):
        view(event)
        lines(event)
    view.close()
    view.expand()
    assert isinstance(live.file, io.StringIO)
    check(live.file.getvalue(), width=60)
    assert not CONTROL.search(plain.getvalue())
    assert max(map(places, plain.getvalue().split("\n"))) <= 120


@by_name
def test_a_question_shows_what_an_escape_sequence_or_a_carriage_return_would_hide(text: str) -> None:
    """`echo ok #<CR>rm -rf ~` runs another command than the one that a terminal would show."""
    hidden = f"echo \x1b]0;{text[:200]}; rm -rf one\x07\rrm -rf two #\x1b[8m rm -rf three"
    shown = re.sub(r"\s", "", drawn(question(Question(tool="shell", arguments={"command": hidden}, rule="")), 80))
    for command in ("one", "two", "three"):
        assert f"rm-rf{command}" in shown
    assert "␛]0;" in shown
    assert "␍" in shown


class Hostile(Person):
    """A chat whose every word is hostile."""

    mode = "ask"

    def __init__(self, text: str):
        self.queued = (text, text)
        self._text = text

    def status(self) -> Text:
        return Text(clean(self._text)[:200].replace("\n", " "))

    def take_back(self) -> str:
        return self._text


class Pty:
    """A pseudo-terminal in this process, with a screen of a chat in it. A thread reads it, or its writer would wait."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch):
        self._master, slave = os.openpty()
        self.file = io.TextIOWrapper(io.FileIO(slave, "r+"), encoding="utf-8", write_through=True)
        self._folder, self._data = folder, bytearray()
        self._reader = threading.Thread(target=self._read_all)
        self._reader.start()
        monkeypatch.setattr(sys, "stdin", self.file)

    def screen(self, text: str) -> Screen:
        files = [text[:200], f"{text[:20]}.py", "plain.py"]
        completer = ChatCompleter({"/help": text[:80]}, lambda: files)
        console = Console(file=self.file, width=60, height=24, force_terminal=True, color_system="standard")
        return Screen(console, Hostile(text), completer=completer, history=self._folder / "history", vi=False)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def text(self) -> str:
        return self._data.decode("utf-8", "ignore")

    def close(self) -> None:
        self.file.close()
        self._reader.join()
        os.close(self._master)

    def _read_all(self) -> None:
        with contextlib.suppress(OSError):  # the other side was closed
            while data := os.read(self._master, 65_536):
                self._data += data


@pytest.fixture
def pty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pty]:
    opened = Pty(tmp_path, monkeypatch)
    yield opened
    opened.close()


@by_name
def test_draft_queue_toolbar_menu_and_question_write_characters_only(text: str, pty: Pty) -> None:
    async def talk() -> None:
        screen = pty.screen(text)
        view = TerminalView(screen.console)
        view.surface = screen
        drawing = asyncio.create_task(screen.run())

        async def until(words: str) -> None:
            for _ in range(1000):
                if words in pty.text():
                    return
                await asyncio.sleep(0.01)
            raise AssertionError(f"{words!r} did not come: {pty.text()[-2000:]!r}")

        await until("ask>")
        events: list[Event] = [
            ToolStarted(call_id="1", name="shell", arguments={"command": text}),
            ToolOutput(call_id="1", text=text),
            Notice(text=text, level="warning"),
        ]
        for event in events:
            view(event)
        pty.type("@pl")
        await until("plain.py")
        screen.draft.reset()
        screen.draft.insert_text(visible(text)[:200])
        screen.say_shortly("a hint", 0.01)
        approve = approver(screen.print, screen.ask, lambda rule: None)
        asking = asyncio.create_task(approve(Question(tool="shell", arguments={"command": text[:9000]}, rule=text)))
        await until("waiting for you")
        pty.type("y\r")
        assert (await asking).accepted
        view.close()
        screen.close()
        await drawing

    asyncio.run(talk())
    output = pty.text().replace("\r\n", "\n")
    check(re.sub(r"(?<!\x08)\x08(?!\x08)", "", output), width=60, height=24)  # a move by one place of prompt_toolkit's
