"""How a chat looks where a terminal is unlike others, and what it says to who cannot see it or looks elsewhere."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest

from m3agent.messages import assistant
from tests.agent.chat.conftest import PATHS, Talk
from tests.agent.chat.scenes import call
from tests.agent.chat.terminal import Terminal

COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;\d+)*m")
MOVES = re.compile(r"\x1b\[\d*[A-HJK]|\x1b\[\?25|\r(?!\n)")
EDIT = call(2, "edit", path="sums.py", old="a - b", new="a + b")


def environment_in(home: Path) -> dict[str, str]:
    own = {"PYTHONPATH": PATHS, "M3_HOME": str(home), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8"}
    return {**os.environ, **own}


@pytest.mark.parametrize("chosen", ["NO_COLOR", "setting"])
def test_without_colour_nothing_is_coloured_until_a_theme_is_chosen(talk: Talk, home: Path, chosen: str) -> None:
    variables = {"NO_COLOR": "1"} if chosen == "NO_COLOR" else {}
    if chosen == "setting":
        (home / "config.toml").write_text('theme = "none"\n')
    terminal, _ = talk(assistant("One **word** and `code`.\n\n```py\nx = 1\n```\n"), **variables)
    terminal.type("say it\r")
    terminal.wait_for("x = 1")
    terminal.wait_for("cached")
    assert not COLOUR.search(terminal.raw)
    before = len(terminal.raw)
    terminal.type("/theme nothing\r")
    terminal.wait_for("the themes are dark, light, contrast, none")
    terminal.type("/theme light\r")
    terminal.wait_for("the theme is now light")
    terminal.type("/todo\r")
    terminal.wait_for("no list of steps")
    assert COLOUR.search(terminal.raw[before:])


def test_a_screen_reader_gets_lines_that_are_never_drawn_again(talk: Talk, repo: Path) -> None:
    terminal, server = talk(
        assistant("I look.", reasoning="Hm. " * 50, calls=(EDIT,)), assistant("Repaired."), assistant("Bye."),
        options=("--screen-reader",),
    )  # fmt: skip
    terminal.type("repair add\r")
    terminal.wait_for("waiting for you: run it?")
    for command, words in (("/theme nothing", "the themes are dark"), ("/dif", "there is no command /dif")):
        terminal.type(f"{command}\r")  # no answer: the question goes on waiting
        terminal.wait_for(words)
    terminal.type("y\r")
    terminal.wait_for("Repaired.")
    terminal.type("no more\r")
    text = terminal.wait_for("Bye.")
    assert "thinks…" in text
    assert "+     return a + b" in text
    assert not MOVES.search(terminal.raw)
    assert text.count("Repaired.") == 1
    assert "a + b" in (repo / "sums.py").read_text()
    assert len(server.requests) == 3
    terminal.press("Ctrl-D")
    assert terminal.wait_for_end() == 0


def test_a_bell_rings_only_while_the_terminal_has_no_focus(talk: Talk) -> None:
    terminal, _ = talk(assistant("First."), assistant("Second."), assistant("Third."))
    assert "\x1b[?1004h" in terminal.raw
    for focus, words, rings in (("", "First.", 0), ("\x1b[O", "Second.", 1), ("\x1b[I", "Third.", 0)):
        before = len(terminal.raw)
        terminal.type(focus + "go on\r")
        terminal.wait_for(words)
        terminal.wait_until(lambda: bool(terminal.text()) and "writes" not in terminal.text())
        time.sleep(0.3)
        terminal.text()
        assert terminal.raw[before:].count("\a") == rings
    assert "[I" not in terminal.text()
    terminal.press("Ctrl-D")
    terminal.wait_for_end()
    assert terminal.raw.rfind("\x1b[?1004l") > terminal.raw.rfind("\x1b[?1004h")


def test_a_terminal_without_a_size_and_many_changes_of_it_are_survived(talk: Talk) -> None:
    terminal, _ = talk(assistant("word " * 2000), assistant("Still here."))
    terminal.type("begin\r")
    terminal.wait_for("word word")
    for number in range(200):
        terminal.resize(20 + number * 7 % 150, 5 + number % 40)
        if number % 20 == 0:
            terminal.text()
    terminal.kill(signal.SIGWINCH)
    terminal.resize(80, 24)
    terminal.type("go on\r")
    terminal.wait_for("Still here.")
    assert "Traceback" not in terminal.raw


def test_a_terminal_of_no_rows_and_columns_is_taken_for_an_ordinary_one(home: Path, repo: Path, talk: Talk) -> None:
    command = [sys.executable, "-m", "m3agent", "chat", "--model", "scripted:none.jsonl"]
    (repo / "none.jsonl").write_text("")
    environment = {
        **os.environ,
        "PYTHONPATH": PATHS,
        "M3_HOME": str(home),
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
    }
    terminal = Terminal(command, folder=repo, environment=environment, width=80, height=24, told=(0, 0))
    try:
        terminal.wait_for("ask>")
        terminal.type("/stats\r")
        terminal.wait_for("0 turns")
        assert "Traceback" not in terminal.raw
    finally:
        terminal.close()


@pytest.mark.parametrize("width", [80, 40])
def test_m3_alone_explains_itself_on_one_screen(home: Path, repo: Path, width: int) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": PATHS,
        "M3_HOME": str(home),
        "TERM": "xterm-256color",
        "LC_ALL": "C.UTF-8",
    }
    terminal = Terminal([sys.executable, "-m", "m3agent"], folder=repo, environment=environment, width=width, height=24)
    try:
        text = terminal.wait_for("Watch nano repair the bundled example")
        for words in ("m3 chat", "m3 fix", "Who answers: nano", "it is not M3", "cannot", "--model"):
            assert words in " ".join(text.split())
        assert len(text.rstrip().split("\n")) <= 24
        terminal.type("n\r")
        assert terminal.wait_for_end() == 0
    finally:
        terminal.close()


LINKS = "Read [the page](https://example.org/a?b=1) and [this](file:///etc/passwd), or [x](https://example.net/\x1b]52;c;aGk=\x07)."
CLICKABLE = re.compile(r"\x1b\]8;[^;]*;([^\x1b\x07]+)\x1b\\")


@pytest.mark.parametrize(
    ("variables", "options", "addresses"),
    [
        ({"TERM_PROGRAM": "WezTerm"}, (), {"https://example.org/a?b=1", "https://example.net/"}),
        ({"TERM_PROGRAM": "WezTerm", "TMUX": "/tmp/tmux-0/default,1,0"}, (), set()),
        ({"TERM_PROGRAM": "WezTerm"}, ("--screen-reader",), set()),
        ({}, (), set()),
    ],
    ids=["known", "inside tmux", "a screen reader", "unknown"],
)
def test_the_address_of_a_link_stands_in_sight_and_is_clickable_where_the_terminal_is_known_to_show_it(
    talk: Talk, variables: dict[str, str], options: tuple[str, ...], addresses: set[str]
) -> None:
    terminal, _ = talk(assistant(LINKS), options=options, **{"TERM_PROGRAM": "", "TMUX": "", **variables})
    terminal.type("where?\r")
    terminal.wait_for("example.org/a?b=1")
    terminal.wait_for("example.net/")
    assert set(CLICKABLE.findall(terminal.raw)) == addresses
    assert "\x1b]52" not in terminal.raw
