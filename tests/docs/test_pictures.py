"""Recorded sessions replay, and the pictures in the README and the model card are what the scripts draw from them."""

from __future__ import annotations

import html
import importlib.util
import io
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from m3agent.events import MessageAdded, RunEnded, RunStarted, ToolStarted, event_to_json
from m3agent.session.replay import replay
from m3agent.session.store import SessionStore
from m3agent.ui.plain import PlainView

ROOT = Path(__file__).parents[2]
TRANSCRIPTS = ROOT / "tests" / "transcripts"
SESSIONS = sorted(path.stem for path in TRANSCRIPTS.glob("*.jsonl"))


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_pictures", ROOT / "docs" / "make_pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(svg: str) -> str:
    """What the picture says, without markup and runs of white space."""
    text = html.unescape(re.sub(r"<[^>]*>", "", re.sub(r"<style>.*?</style>", "", svg, flags=re.DOTALL)))
    return " ".join(text.split())


@pytest.mark.parametrize("session", SESSIONS)
def test_a_recorded_session_reads_back_as_it_was_written(session: str) -> None:
    recording = SessionStore(TRANSCRIPTS).read(session)
    lines = (TRANSCRIPTS / f"{session}.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(json.dumps(event_to_json(event))) for event in recording.events] == list(map(json.loads, lines))
    assert not recording.torn
    assert isinstance(recording.events[0], RunStarted)
    assert isinstance(recording.events[-1], RunEnded)


@pytest.mark.parametrize("session", SESSIONS)
def test_every_call_of_a_recorded_session_is_answered(session: str) -> None:
    messages = [e.message for e in SessionStore(TRANSCRIPTS).read(session).events if isinstance(e, MessageAdded)]
    called = [call.id for message in messages for call in message.tool_calls]
    assert called
    assert called == [message.tool_call_id for message in messages if message.role == "tool"]


def test_the_plain_view_of_the_recorded_run_tells_all_of_it() -> None:
    recording = SessionStore(TRANSCRIPTS).read("fix-inventory")
    stream = io.StringIO()
    replay(recording, PlainView(stream, show_summary=True))
    shown = stream.getvalue()
    ended = recording.events[-1]
    assert isinstance(ended, RunEnded)
    calls = [event.name for event in recording.events if isinstance(event, ToolStarted)]
    assert all(name in shown for name in calls)
    for phase in ("baseline", "locate", "candidates", "verify"):
        assert f"▸ {phase}" in shown
    assert "14 passed, 2 failed" in shown
    assert "undone   2 failed" in shown
    assert "\x1b" not in shown


def test_the_picture_in_the_readme_is_the_recorded_run(script: ModuleType) -> None:
    drawn = script.picture()
    assert words(drawn) == words((ROOT / "docs/images/fix.svg").read_text(encoding="utf-8"))
    assert "@font-face" not in drawn
    assert "docs/images/fix.svg" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_command_in_the_picture_is_the_one_that_was_recorded(script: ModuleType) -> None:
    assert f"`{script.COMMAND}`" in (TRANSCRIPTS / "README.md").read_text(encoding="utf-8")
    started = SessionStore(TRANSCRIPTS).read(script.SESSION).events[0]
    assert isinstance(started, RunStarted)
    assert f"--repo {started.repo}" in script.COMMAND
    assert f"--model {started.model}" in script.COMMAND
