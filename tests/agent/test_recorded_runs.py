"""Runs of `m3` that a strong model answered by hand: today's loop, fed with its replies, goes the same way."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path
from typing import Any

import pytest

from m3_tools.base import Tool, ToolArgs, ToolContext, ToolResult
from m3_tools.screenshot.tool import ScreenshotTool
from m3_tools.toolset import all_tools
from m3agent.budget import Budget
from m3agent.events import MessageAdded, RunEnded, RunStarted, ToolEnded
from m3agent.llm.protocol import Options
from m3agent.llm.scripted import ScriptedModel
from m3agent.loop import run_loop
from m3agent.messages import Message
from m3agent.prompt import Conversation
from m3agent.session.replay import replay
from m3agent.session.store import Recording, SessionStore
from m3agent.ui.plain import PlainView

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"
SESSIONS = sorted(path.stem for path in TRANSCRIPTS.glob("by-hand-*.jsonl"))


@pytest.fixture(params=SESSIONS)
def recording(request: pytest.FixtureRequest) -> Recording:
    return SessionStore(TRANSCRIPTS).read(request.param)


def recorded_tools(results: list[ToolResult]) -> list[Tool[Any]]:
    """Every tool as it is, its arguments checked as ever, but it answers with the next recorded result."""

    async def run(self: Tool[Any], args: ToolArgs, context: ToolContext) -> ToolResult:
        return results.pop(0)

    return [type("Recorded", (type(tool),), {"run": run})() for tool in all_tools(more=(ScreenshotTool(),))]


def test_the_loop_goes_the_recorded_way(recording: Recording, tmp_path: Path) -> None:
    messages = [event.message for event in recording.events if isinstance(event, MessageAdded)]
    results = [ToolResult(text=e.text, is_error=e.is_error) for e in recording.events if isinstance(e, ToolEnded)]
    started = recording.events[0]
    assert isinstance(started, RunStarted)
    model = ScriptedModel([message for message in messages if message.role == "assistant"])
    conversation = Conversation(lambda event: None)
    tools = recorded_tools(results)
    while len(conversation.messages) < len(messages):
        while (said := messages[len(conversation.messages)]).role in ("system", "user"):
            conversation.add(said)
        asyncio.run(
            run_loop(
                model,
                conversation,
                tools,
                ToolContext(root=tmp_path, spill_dir=tmp_path),
                sink=lambda event: None,
                options=Options(),
                budget=Budget(),
                mode="auto" if started.command == "run" else "edit",  # as they were given
            )
        )
    assert list(map(plain, conversation.messages)) == list(map(plain, messages))
    assert results == []


def plain(message: Message) -> Any:
    return (message.role, message.text, [(c.name, dict(c.arguments)) for c in message.tool_calls], message.is_error)


def test_the_view_tells_every_call_and_the_end(recording: Recording) -> None:
    stream = io.StringIO()
    replay(recording, PlainView(stream, show_summary=True))
    shown = stream.getvalue()
    ended = recording.events[-1]
    assert isinstance(ended, RunEnded)
    assert all(event.name in shown for event in recording.events if isinstance(event, ToolEnded))
    assert " ".join(ended.summary.splitlines()[0].split()) in " ".join(shown.split())  # an answer is wrapped


def test_fixed_was_said_with_a_proof_alone(recording: Recording) -> None:
    ended = recording.events[-1]
    assert isinstance(ended, RunEnded)
    report = ended.report
    if "proven" not in report:
        assert ended.outcome == "answered"  # a plain task claims nothing in the name of m3
        return
    assert (ended.outcome == "fixed") == report["proven"]
    if report["proven"]:
        undone = report["tests"]["undone"]
        assert report["tests"].get("shown") or undone["failed"] + undone["errors"] > 0
