"""A chat as a person has it: typing, pasting, completing, steering, stopping, approving, at two sizes."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m3agent.loop import BEFORE_IT_RAN, WHILE_IT_RAN
from m3agent.messages import ToolCall, assistant
from tests.agent.chat.conftest import Talk
from tests.agent.chat.terminal import squeezed
from tests.contracts.played_server import PlayedServer, chunk

STOPS_WITHIN_S = 3.0
"""Half a second is what a person gets; a busy test machine gets more."""
PASTES_WITHIN_S = 5.0


def call(number: int, name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{number}", name=name, arguments=arguments)


EDIT = call(2, "edit", path="sums.py", old="a - b", new="a + b")
SLEEP = call(3, "shell", command="echo begun; sleep 60")


def silent(line: Callable[[str], None]) -> None:
    """A turn that does not begin: the prompt is being read."""
    threading.Event().wait(20)


def endless(line: Callable[[str], None]) -> None:
    """A turn that does not end."""
    for number in range(2000):
        line(json.dumps(chunk({"content": f"word{number} "})))
        time.sleep(0.01)


def said(server: PlayedServer, request: int = -1) -> list[str]:
    """What the person said, in one request to the model."""
    return [m["content"] for m in server.requests[request]["messages"] if m["role"] == "user"]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 20)])
def test_a_repair_is_asked_for_shown_and_undone(talk: Talk, repo: Path, width: int, height: int) -> None:
    answer = "The sum was a **difference**.\n\n- repaired in `sums.py`\n\n```py\nreturn a + b\n```\n"
    terminal, _ = talk(
        assistant("I look.", reasoning="Where is it? " * 20, calls=(call(1, "read", path="sums.py"),)),
        assistant(calls=(EDIT,)),
        assistant(answer),
        width=width,
        height=height,
    )
    terminal.type("repair add")
    terminal.press("Enter")
    terminal.wait_for("waiting for you: run it?")
    assert "a - b" in (repo / "sums.py").read_text()
    for command, words in (("/theme nothing", "the themes are dark"), ("/dif", "there is no command /dif")):
        terminal.type(f"{command}\r")  # no answer: the question goes on waiting
        terminal.wait_for(words)
    terminal.wait_for("waiting for you: run it?")
    terminal.type("y")
    terminal.press("Enter")
    terminal.wait_for("repaired in sums.py")
    text = squeezed(terminal.wait_for("of 1M · 72 % cached"))
    for words in (
        "› repair add",
        "thought for",
        "about",
        "✓ read sums.py",
        "✓ edit sums.py · +1 −1",
        "you approved it",
    ):
        assert words in text
    assert text.count("The sum was a difference.") == 1
    assert "a + b" in (repo / "sums.py").read_text()
    terminal.type("/undo")
    terminal.press("Enter")
    terminal.wait_for("sums.py is as it was")
    assert "a - b" in (repo / "sums.py").read_text()
    assert max(map(len, terminal.text().split("\n"))) <= width
    terminal.press("Ctrl-D")
    assert terminal.wait_for_end() == 0
    assert "m3 chat --resume" in terminal.text()
    assert terminal.raw.rfind("\x1b[?25h") > terminal.raw.rfind("\x1b[?25l")


def test_what_is_typed_while_the_model_is_loaded_is_kept_and_shown_once(talk: Talk) -> None:
    terminal, _ = talk(options=("--model", "nano"), early="/stats\rhalf a draft")
    terminal.wait_for("ask> half a draft")
    terminal.wait_for("turns")
    loading = terminal.raw[: terminal.raw.index("m3-nano")]
    assert "/stats" not in loading
    assert "half" not in loading


def test_a_draft_has_several_lines_and_enter_sends_them(talk: Talk) -> None:
    terminal, server = talk(assistant("Read."))
    terminal.type("one")
    terminal.press("Alt+Enter")
    terminal.type("two\\")
    terminal.press("Enter")
    terminal.type("three")
    terminal.press("Enter")
    terminal.wait_for("Read.")
    assert said(server) == ["one\ntwo\nthree"]


def test_a_large_paste_is_quick_never_sends_and_arrives_whole(talk: Talk) -> None:
    terminal, server = talk(assistant("Read."))
    lines = [f"{number:06} {'x' * 92}" for number in range(10_486)]
    terminal.type("look: ")
    terminal.wait_for("ask> look:")
    start = time.monotonic()
    terminal.paste("\r".join(lines))
    terminal.wait_for("[pasted 10,486 lines]")
    assert time.monotonic() - start < PASTES_WITHIN_S
    assert not server.requests
    terminal.press("Enter")
    terminal.wait_for("Read.")
    assert said(server) == ["look: " + "\n".join(lines)]


def test_files_and_commands_complete(talk: Talk, repo: Path) -> None:
    (repo / "deep").mkdir()
    (repo / "deep" / "naïve plan.md").write_text("x")
    (repo / ".gitignore").write_text("*.log\n")
    (repo / "plan.log").write_text("x")
    terminal, server = talk(assistant("Read."))
    terminal.type("/sta")
    terminal.wait_for("turns, tokens and speed")
    terminal.press("Ctrl-C")
    terminal.wait_until(lambda: "/sta" not in terminal.text())
    terminal.type("see @nplan")
    terminal.wait_for("deep/naïve plan.md")
    assert "plan.log" not in terminal.text()
    terminal.press("Tab")
    terminal.wait_for('@"deep/naïve plan.md"')
    terminal.type(" and @test_s")
    terminal.wait_for("test_sums.py")
    terminal.press("Tab")
    terminal.type(" please")
    terminal.press("Enter")
    terminal.wait_for("Read.")
    assert said(server) == ['see @"deep/naïve plan.md" and @test_sums.py please']


def test_hostile_output_of_a_command_is_harmless_and_the_model_reads_it(talk: Talk) -> None:
    terminal, server = talk(assistant("Read."), options=("--no-sandbox",))
    titles = r"printf '\033]52;c;aGk=\007\033]0;title\007\033[2J\0 10%%\r99%%\n'"
    code = titles + r"; head -c 200000 /dev/zero | tr '\0' y; echo"
    terminal.type("!" + code)
    terminal.press("Enter")
    terminal.wait_for("your own command")
    terminal.type("what was that?")
    terminal.press("Enter")
    terminal.wait_for("Read.")
    assert "\x1b]" not in terminal.raw
    assert "\x1b[2J" not in terminal.raw
    assert "99%" in terminal.text()
    assert "yyyy" in terminal.text()
    first, second = said(server)
    assert "I ran this command myself" in first
    assert "99%" in first
    assert second == "what was that?"


def test_what_is_said_during_the_work_reaches_the_model_at_its_next_step(talk: Talk) -> None:
    wait = call(1, "shell", command="echo begun; sleep 2")
    terminal, server = talk(assistant(calls=(wait,)), assistant("Both heard."), options=("--mode", "auto"))
    terminal.type("begin")
    terminal.press("Enter")
    terminal.wait_for("begun")
    terminal.type("and this too")
    terminal.press("Enter")
    terminal.wait_for("queued: and this too")
    terminal.wait_for("Both heard.")
    assert said(server) == ["begin", "and this too"]
    assert [m["role"] for m in server.requests[1]["messages"]] == ["system", "user", "assistant", "tool", "user"]


@pytest.mark.parametrize("phase", ["prefill", "decode", "tool", "approval"])
def test_esc_stops_at_once_in_every_phase_and_loses_nothing(talk: Talk, phase: str) -> None:
    turn, sign = {
        "prefill": (silent, "reads"),
        "decode": (endless, "word20"),
        "tool": (assistant(calls=(SLEEP,)), "begun"),
        "approval": (assistant(calls=(EDIT,)), "run it?"),
    }[phase]
    mode = "ask" if phase == "approval" else "auto"
    terminal, server = talk(turn, assistant("Both heard."), options=("--mode", mode))
    terminal.type("begin")
    terminal.press("Enter")
    terminal.wait_for(sign)
    if phase != "approval":  # a draft there is the answer
        terminal.type("queued")
        terminal.press("Enter")
        terminal.wait_for("queued: queued")
        terminal.type("my draft")
        terminal.wait_for("my draft")
    terminal.press("Esc")
    assert terminal.wait_until(lambda: "interrupted; say" in terminal.text()) < STOPS_WITHIN_S
    if phase == "approval":
        terminal.type("my draft")
    shown = terminal.wait_for("my draft")
    assert "word" not in shown.split("interrupted; say")[1]
    assert len(server.requests) == 1
    terminal.press("Enter")
    terminal.wait_for("Both heard.")
    expected = ["begin", "my draft"] if phase == "approval" else ["begin", "queued", "my draft"]
    assert said(server) == expected
    calls = [c["id"] for m in server.requests[-1]["messages"] for c in m.get("tool_calls") or ()]
    results = [m["tool_call_id"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]
    assert calls == results
    told = [m["content"] for m in server.requests[-1]["messages"] if m["role"] == "tool"]
    assert told == {"tool": [WHILE_IT_RAN], "approval": [BEFORE_IT_RAN]}.get(phase, [])


@pytest.mark.parametrize("work_goes_on", [True, False])
def test_esc_stops_a_question_aside_before_the_work(talk: Talk, work_goes_on: bool) -> None:
    answered = threading.Event()

    def slow(line: Callable[[str], None]) -> None:
        line(json.dumps(chunk({"content": "At work."})))
        answered.wait(20)
        line(json.dumps(chunk({}, "stop")))
        line("[DONE]")

    terminal, server = talk(slow, silent, assistant("More work."))
    terminal.type("begin")
    terminal.press("Enter")
    terminal.wait_for("At work.")
    terminal.type("/btw what is it?")
    terminal.press("Enter")
    terminal.wait_until(lambda: len(server.requests) == 2)
    if not work_goes_on:
        answered.set()
        terminal.wait_until(lambda: "reads" not in terminal.text().splitlines()[-2])
    terminal.press("Esc")
    assert terminal.wait_until(lambda: "stopped: /btw what is it?" in terminal.text()) < STOPS_WITHIN_S
    answered.set()
    terminal.type("and then?")
    terminal.press("Enter")
    terminal.wait_for("More work.")
    assert "interrupted" not in terminal.text()
    assert said(server) == ["begin", "and then?"]


def test_what_waits_can_be_taken_back(talk: Talk) -> None:
    terminal, server = talk(endless, assistant("Read."))
    terminal.type("begin")
    terminal.press("Enter")
    terminal.wait_for("word5")
    terminal.type("wrong")
    terminal.press("Enter")
    terminal.wait_for("queued: wrong")
    terminal.press("Up")
    terminal.wait_until(lambda: "queued:" not in terminal.text())
    terminal.type(" no longer")
    terminal.press("Ctrl-C")
    terminal.wait_for("interrupted; say")
    terminal.press("Enter")
    terminal.wait_for("Read.")
    assert said(server) == ["begin", "wrong no longer"]


def test_a_second_ctrl_c_leaves(talk: Talk) -> None:
    terminal, _ = talk(silent)
    terminal.type("begin")
    terminal.press("Enter")
    terminal.wait_for("reads")
    terminal.press("Ctrl-C")
    terminal.wait_for("interrupted; say")
    terminal.press("Ctrl-C")
    assert terminal.wait_for_end() == 0
    assert "m3 chat --resume" in terminal.text()


def test_what_was_typed_before_a_question_is_no_answer_to_it(talk: Talk, repo: Path) -> None:
    begin = threading.Event()

    def late(line: Callable[[str], None]) -> None:
        begin.wait(20)
        function = {"name": "edit", "arguments": json.dumps(dict(EDIT.arguments))}
        line(json.dumps(chunk({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]})))
        line(json.dumps(chunk({}, "tool_calls")))
        line("[DONE]")

    terminal, server = talk(late, assistant("Good."))
    terminal.type("begin")
    terminal.press("Enter")
    terminal.wait_for("reads")
    terminal.type("y")
    terminal.wait_for("ask> y")
    begin.set()
    terminal.wait_for("run it?")
    terminal.press("Enter")
    terminal.type("no")
    terminal.press("Enter")
    terminal.wait_for("Good.")
    assert "a - b" in (repo / "sums.py").read_text()
    assert "ask> y" in terminal.text()
    assert "refused this call." in server.requests[-1]["messages"][-1]["content"]


def test_plan_reads_only_and_shift_tab_holds_at_once(talk: Talk, repo: Path) -> None:
    terminal, server = talk(
        assistant(calls=(EDIT,)), assistant("Only a plan."), assistant(calls=(EDIT,)), assistant("Done now."),
        options=("--mode", "auto"),
    )  # fmt: skip
    terminal.press("Shift+Tab")
    terminal.wait_for("plan>")
    terminal.type("plan it")
    terminal.press("Enter")
    terminal.wait_for("Only a plan.")
    assert "plan mode only reads" in server.requests[1]["messages"][-1]["content"]
    assert "a - b" in (repo / "sums.py").read_text()
    terminal.press("Shift+Tab", "Shift+Tab")
    terminal.wait_for("edit>")
    terminal.type("do it")
    terminal.press("Enter")
    terminal.wait_for("Done now.")
    assert "edit mode: edits and tests are free" in squeezed(terminal.text())
    assert "a + b" in (repo / "sums.py").read_text()


def test_a_resize_storm_breaks_nothing(talk: Talk) -> None:
    terminal, _ = talk(endless)
    terminal.type("begin")
    terminal.press("Enter")
    terminal.wait_for("word20")
    terminal.type("a draft")
    for width, height in [(40, 10), (120, 40), (20, 5), (80, 24), (41, 7), (80, 24)]:
        terminal.resize(width, height)
        time.sleep(0.1)
        terminal.text()
    terminal.press("Esc")
    terminal.wait_for("interrupted; say")
    assert "a draft" in terminal.wait_for("a draft")
    assert "Traceback" not in terminal.raw


def test_messages_stay_in_the_history_of_the_repository(talk: Talk) -> None:
    terminal, _ = talk(assistant("First answer."), assistant("Second answer."))
    for message, answer in (("the first one", "First answer."), ("a later one", "Second answer.")):
        terminal.type(message)
        terminal.press("Enter")
        terminal.wait_for(answer)
    terminal.press("Ctrl-D")
    terminal.wait_for_end()
    terminal, server = talk(assistant("Again."), options=("--resume",))
    terminal.wait_for("going on with")
    terminal.press("Up")
    terminal.wait_for("ask> a later one")
    terminal.press("Ctrl-C", "Ctrl-R")
    terminal.type("the fi")
    terminal.wait_for("ask> the first one")
    terminal.press("Enter", "Enter")
    terminal.wait_for("Again.")
    assert said(server) == ["the first one", "a later one", "the first one"]


def test_a_draft_opens_in_the_editor_and_vi_keys_are_a_setting(talk: Talk, tmp_path: Path, home: Path) -> None:
    editor = tmp_path / "editor.sh"
    editor.write_text('#!/bin/sh\nprintf " and more" >> "$1"\n')
    editor.chmod(0o755)
    terminal, server = talk(assistant("Read."), EDITOR=str(editor), VISUAL="")
    terminal.type("this")
    terminal.press("Ctrl-X Ctrl-E")
    terminal.wait_for("ask> this and more")
    terminal.press("Enter")
    terminal.wait_for("Read.")
    assert said(server) == ["this and more"]
    terminal.close()
    (home / "config.toml").write_text('keys = "vi"\n')
    terminal, server = talk(assistant("Read."))
    terminal.type("two words")
    terminal.press("Esc")
    time.sleep(0.5)
    terminal.type("bdwA!")
    terminal.wait_for("ask> two !")


def test_a_signal_ends_the_chat_and_gives_the_terminal_back(talk: Talk) -> None:
    terminal, _ = talk(silent)
    terminal.type("begin")
    terminal.press("Enter")
    terminal.wait_for("reads")
    terminal.kill(signal.SIGTERM)
    assert terminal.wait_for_end() == 143
    assert "Traceback" not in terminal.raw
    assert terminal.raw.rfind("\x1b[?2004l") > terminal.raw.rfind("\x1b[?2004h")


def test_the_commands_tell_and_export(talk: Talk, repo: Path) -> None:
    terminal, _ = talk(assistant("An answer."))
    terminal.type("a question")
    terminal.press("Enter")
    terminal.wait_for("An answer.")
    for line, words in (
        ("/help", "search earlier messages"),
        ("/context", "came from the cache"),
        ("/stats", "1 turns in"),
        ("/permissions", "you gave no rules"),
        ("/sessions", "(this one)"),
        ("/diff", "No change in"),
        ("/export talk.md", "talk.md"),
        ("/export talk.md", "cannot be written: File exists"),
        ("/nothing", "there is no command /nothing"),
    ):
        terminal.type(line)
        terminal.press("Enter")
        terminal.wait_for(words)
    text = (repo / "talk.md").read_text()
    assert re.search(r"## Person\n\na question\n\n## Model\n\nAn answer\.", text)
    terminal.type("/quit")
    terminal.press("Enter")
    assert terminal.wait_for_end() == 0
