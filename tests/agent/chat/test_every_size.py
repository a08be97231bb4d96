"""What a person can do in a chat, one thing after the other in two chats, in a terminal of every size.

The golden screens show the main views at the same sizes; a walk through them leaves out what is driven here.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from m3agent.messages import assistant
from m3agent.repository.config import read_brought
from m3agent.trust import TrustStore
from tests.agent.chat.conftest import Talk
from tests.agent.chat.scenes import call
from tests.agent.chat.talking import settings_in
from tests.contracts.played_server import PlayedServer, chunks

EDIT = call(1, "edit", path="sums.py", old="a - b", new="a + b")
STEPS = [{"text": "look", "state": "done"}, {"text": "mend it", "state": "active"}]


def said(server: PlayedServer) -> list[Any]:
    """What the person said, in the last request."""
    return [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "user"]


def heard(server: PlayedServer) -> str:
    """The last result that the model read."""
    return str([m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"][-1])


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 20), pytest.param(200, 50, marks=pytest.mark.slow)])
def test_everything_can_be_done_at_every_size(
    talk: Talk, repo: Path, home: Path, tmp_path: Path, width: int, height: int
) -> None:
    go_on = threading.Event()

    def waits(line: Callable[[str], None]) -> None:
        for done in (1000, 2000):
            line(json.dumps({"choices": [], "prompt_progress": {"processed": done, "total": 8000}}))
        go_on.wait(20)
        for item in chunks(assistant("I went on.")):
            line(item if isinstance(item, str) else json.dumps(item))

    turns = (
        assistant("Two lines.", reasoning="Since it is so. " * 10),
        assistant(calls=(call(2, "shell", command="git status --short"),)),
        assistant(calls=(call(3, "shell", command="git status -b"),)),
        assistant("Looked twice."),
        assistant(calls=(EDIT,)),
        assistant("As you say."),
        assistant(calls=(EDIT, call(4, "todo", items=STEPS))),
        assistant("It is mended."),
        assistant("A red box."),
        waits,
        assistant("For this reason."),
        assistant("Heard it."),
        assistant(calls=(call(5, "terminal", action="start", command="cat"),)),
        assistant("It goes on."),
        assistant("Reviewed."),
    )
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nprintf " and more" >> "$1"\n')
    editor.chmod(0o755)
    Image.new("RGB", (300, 150), (200, 0, 0)).save(tmp_path / "box.png")
    bring_a_command(repo, home)
    terminal, server = talk(*turns, width=width, height=height, EDITOR=str(editor), VISUAL="")

    def tell(line: str, words: str, *, times: int = 1) -> None:
        terminal.type(f"{line}\r")
        terminal.wait_for(words, times=times)

    # Several lines, reasoning that is folded, and shown again
    tell("the first\\\rand the second", "Two lines.")
    assert said(server) == ["the first\nand the second"]
    assert terminal.text().count("Since it is so.") <= 1
    terminal.type("\x0f")
    terminal.wait_for("Since it is so.", times=8)

    # A rule for the rest of the chat, in the person's words
    tell("look twice", "waiting for you: run it?")
    tell("always ls", "does not let it run")
    tell("always git status", "Looked twice.")
    terminal.wait_for("you approved it in this chat")
    tell("/permissions", "in this chat: allow shell: git status")

    # Rejected with a reason, then accepted; what changed is shown, tested, and put back
    tell("repair", "waiting for you: run it?")
    tell("rather write b + a", "As you say.")
    assert "rather write b + a" in heard(server)
    tell("repair it now", "waiting for you: run it?")
    tell("y", "It is mended.")
    tell("/todo", "mend it", times=2)
    tell("/diff", "return a + b", times=2)
    tell("/test", "1 passed")
    tell("/undo", "sums.py is as it was")
    assert "a - b" in (repo / "sums.py").read_text()

    # A draft of everything: a file, a long paste, a picture, and the editor
    terminal.type("see @su")
    terminal.wait_for("test_sums.py")
    terminal.press("Tab")
    terminal.type(" ")
    terminal.paste("\r".join(f"line {n}" for n in range(30)))
    terminal.wait_for("[pasted 30 lines]")
    terminal.type(" ")
    terminal.paste(str(tmp_path / "box.png"))
    terminal.wait_for("300 × 150, about")
    terminal.press("Ctrl-X Ctrl-E")
    terminal.wait_for("] and")
    terminal.press("Enter")
    terminal.wait_for("A red box.")
    *pictures, text = said(server)[-1]
    assert text["text"].startswith("see @sums.py line 0\nline 1\n")
    assert text["text"].endswith("line 29 [picture 1: box.png] and more")
    assert len(pictures) == 1

    # A command of the person's own, and a question aside while the model reads
    tell("!echo mine", "your own command")
    tell("go on", "of 8,000 tokens (25 %)")
    tell("/btw why is that?", "For this reason.")
    assert any("why is that?" in str(content) for content in said(server))
    go_on.set()
    terminal.wait_for("I went on.")
    tell("did you hear it?", "Heard it.")
    assert "echo mine" in said(server)[-3]
    assert said(server)[-2:] == ["go on", "did you hear it?"]

    # Modes; what goes on in the background; a command of the repository
    tell("/mode edit", "the mode is now edit")
    terminal.press("Shift+Tab")
    terminal.wait_for("auto>")
    tell("start it", "It goes on.")
    if width >= 80:  # the narrow status line has no room for it
        terminal.wait_for("· 1 in the background")
    tell("/review sums.py", "Reviewed.")
    assert said(server)[-1] == "Read sums.py and criticise it."

    # The other commands, a fork, a way back, and a page of it all
    for line, words in (
        ("/help", "search earlier messages"), ("/context", "by characters"), ("/stats", "tokens read"),
        ("/model", "its window holds"), ("/mcp", "no MCP servers"), ("/theme light", "the theme is now light"),
        ("/image nothing.png", "does not exist"), ("/fix nothing.md", "no file of that name"),
        ("/compact", "gave no answer"),
        ("/fork", "this is a fork now"), ("/rewind 1", "still holds what came after"), ("/sessions", "(this one)"),
        ("/export talk.html", "conversation so far is in"),
    ):  # fmt: skip
        if line == "/compact":
            server.turns.append(assistant(""))
        tell(line, words)
    assert "did you hear it?" in (repo / "talk.html").read_text()
    terminal.press("Ctrl-R")
    terminal.type("did you")
    terminal.wait_for("auto> did you hear it?")
    terminal.press("Ctrl-C")
    tell("/quit", "m3 chat --resume")
    assert terminal.wait_for_end() == 0
    assert "Traceback" not in terminal.raw

    # It goes on, and this time with the keys of vi
    (home / "config.toml").write_text('keys = "vi"\n')
    terminal, server = talk(assistant("Again."), options=("--resume",), width=width, height=height)
    terminal.type("two words")
    terminal.press("Esc")
    time.sleep(0.5)  # longer than what would make it a key with Alt
    terminal.type("bdwA!\r")
    terminal.wait_for("Again.")
    assert said(server)[-3:] == ["did you hear it?", "start it", "two !"]


def bring_a_command(repo: Path, home: Path) -> None:
    """Give the repository a command `/review`, which the person trusts."""
    folder = repo / ".m3" / "commands"
    folder.mkdir(parents=True)
    (folder / "review.md").write_text("Read $ARGUMENTS and criticise it.\n")
    brought = read_brought(repo)
    assert brought is not None
    TrustStore(settings_in(home).state_dir).record(repo, brought.digest, trusted=True)
