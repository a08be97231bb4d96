"""Runs and chats on a real terminal (tmux), with a scripted model and real tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m3agent.messages import Message, ToolCall, assistant, message_to_json
from m3agent.session.store import SessionStore
from m3agent.ui.samples import SAMPLES
from tests.end_to_end.conftest import Screen

Start = Callable[..., Screen]


def call(number: int, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{number}", name=name, arguments=arguments)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    (root / "sums.py").write_text("def add(a, b):\n    return a - b\n")
    (root / "test_sums.py").write_text("from sums import add\n\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    return root


def script(folder: Path, *turns: Message) -> str:
    path = folder / "script.jsonl"
    path.write_text("".join(json.dumps(message_to_json(turn)) + "\n" for turn in turns))
    return f"scripted:{path}"


@pytest.fixture
def repair(tmp_path: Path) -> str:
    return script(
        tmp_path,
        assistant("I look at `sums.py`.", reasoning="Where is it?", calls=(call(1, "read", path="sums.py"),)),
        assistant(calls=(call(2, "edit", path="sums.py", old="a - b", new="a + b"),)),
        assistant(calls=(call(3, "test"),)),
        assistant("The sum was a **difference**.\n\n- repaired in `sums.py`\n- one test passes\n"),
    )


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 20), (200, 50)])
def test_a_run_streams_its_steps_and_leaves_a_clean_screen(
    start: Start, repo: Path, repair: str, width: int, height: int
) -> None:
    screen = start("run", "repair add", "--model", repair, folder=repo, width=width, height=height)
    text = screen.wait_for("EXIT 0")
    squeezed = " ".join(text.split())
    for step in (
        "thought for",
        "✓ read sums.py",
        "+1 −1",
        "return a + b",
        "1 passed",
        "• repaired in sums.py",
        "answered",
    ):
        assert step in squeezed
    assert squeezed.count("The sum was a difference.") == 1
    assert "works ·" not in text
    assert max(len(line) for line in text.split("\n")) <= width


@pytest.mark.parametrize("width", [80, 40])
def test_a_replay_shows_every_kind_of_event(start: Start, repo: Path, environment: dict[str, str], width: int) -> None:
    store = SessionStore(Path(environment["M3_HOME"]) / "sessions")
    with store.create("20260101-000000-aaaa") as session:
        for event in SAMPLES:
            session(event)
    screen = start("replay", "20260101", folder=repo, width=width)
    text = " ".join(screen.wait_for("EXIT 0").split())
    assert "2 candidates did not work" in text
    assert "✓ 3/3 inventory/stock.py" in text
    assert "✓ fixed and verified" in text
    assert "The comparison was strict" in text


def test_a_resize_storm_during_a_run_breaks_nothing(start: Start, repo: Path, tmp_path: Path) -> None:
    model = script(tmp_path, assistant("Words. " * 40, calls=(call(1, "shell", command="sleep 2"),)), assistant("End."))
    screen = start("run", "x", "--mode", "auto", "--model", model, folder=repo)
    screen.wait_for("shell sleep 2")
    for width, height in [(40, 10), (200, 50), (20, 5), (80, 24), (41, 7), (80, 24)]:
        screen.resize(width, height)
    assert "End." in screen.wait_for("EXIT 0")


def test_ctrl_c_ends_a_run_with_130_and_the_cursor_comes_back(start: Start, repo: Path, tmp_path: Path) -> None:
    model = script(tmp_path, assistant(calls=(call(1, "shell", command="sleep 60"),)))
    screen = start("run", "x", "--mode", "auto", "--model", model, folder=repo)
    screen.wait_for("shell sleep 60")
    screen.press("C-c")
    text = screen.wait_for("EXIT 130")
    assert "interrupted" in text
    assert "Traceback" not in text
    assert screen._tmux("display-message", "-p", "-t", "m3", "#{cursor_flag}").strip() == "1"


def test_a_chat_asks_before_it_changes_anything(start: Start, repo: Path, tmp_path: Path) -> None:
    edit = call(2, "edit", path="sums.py", old="a - b", new="a + b")
    model = script(
        tmp_path,
        assistant(calls=(call(1, "read", path="sums.py"),)),
        assistant(calls=(edit,)),
        assistant("Not changed."),
        assistant(calls=(edit,)),
        assistant("Changed now."),
    )
    screen = start("chat", "--model", model, folder=repo)
    assert "works" not in screen.wait_for("ask>")
    screen.type("repair it")
    screen.press("Enter")
    shown = screen.wait_for("run it?")
    assert "a + b" in shown
    screen.type("not like this")
    screen.press("Enter")
    screen.wait_for("Not changed.")
    assert "a - b" in (repo / "sums.py").read_text()
    screen.type("then do it")
    screen.press("Enter")
    screen.wait_for("run it?", times=2)
    screen.type("y")
    screen.press("Enter")
    assert "✓ edit sums.py" in screen.wait_for("Changed now.")
    assert "a + b" in (repo / "sums.py").read_text()
    screen.type("/undo")
    screen.press("Enter")
    screen.wait_for("sums.py is as it was")
    assert "a - b" in (repo / "sums.py").read_text()
    screen.press("C-d")
    assert "m3 chat --resume" in screen.wait_for("EXIT 0")


def test_ctrl_c_in_a_chat_stops_the_request_and_not_the_chat(start: Start, repo: Path, tmp_path: Path) -> None:
    model = script(tmp_path, assistant(calls=(call(1, "shell", command="sleep 60"),)), assistant("Still here."))
    screen = start("chat", "--mode", "auto", "--model", model, folder=repo)
    screen.wait_for("auto>")
    screen.type("wait")
    screen.press("Enter")
    screen.wait_for("shell sleep 60")
    screen.press("C-c")
    screen.wait_for("interrupted; say how to go on")
    screen.type("go on")
    screen.press("Enter")
    screen.wait_for("Still here.")
    screen.type("/quit")
    screen.press("Enter")
    screen.wait_for("EXIT 0")
