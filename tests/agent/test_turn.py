"""One turn: what streams becomes events and one reply."""

from __future__ import annotations

import asyncio

import pytest

from m3agent.events import Prefill, TurnEnded
from m3agent.llm.protocol import BadReply, Finished, Options, PrefillProgress, TextDelta, ThinkDelta, ToolCallReady
from m3agent.llm.scripted import ScriptedModel, Turn
from m3agent.messages import ToolCall, user
from m3agent.sinks import Recorder
from m3agent.turn import Reply, take_turn

CALL = ToolCallReady(call=ToolCall(id="c1", name="read", arguments={"path": "a.py"}))


def turn(script: Turn) -> tuple[Reply, Recorder]:
    events = Recorder()
    model = ScriptedModel([script])
    return asyncio.run(take_turn(model, [user("hello")], [], Options(), events, number=1)), events


def test_the_same_progress_is_told_once() -> None:
    half, whole = (PrefillProgress(done_tokens=n, total_tokens=200) for n in (100, 200))
    _, events = turn([half, half, whole, whole, whole, TextDelta(text="x"), Finished(reason="stop")])
    told = [(e.done_tokens, e.total_tokens) for e in events.events if isinstance(e, Prefill)]
    assert told == [(100, 200), (200, 200)]


def test_a_reply_that_was_cut_off_keeps_its_text_and_loses_its_calls() -> None:
    reply, events = turn([TextDelta(text="I re"), CALL, Finished(reason="length")])
    assert (reply.truncated, reply.message.text, reply.message.tool_calls) == (True, "I re", ())
    assert isinstance(events.events[-1], TurnEnded)


@pytest.mark.parametrize(
    ("script", "empty"),
    [
        ([Finished(reason="stop")], True),
        ([ThinkDelta(text="hm"), TextDelta(text=" \n"), Finished(reason="stop")], True),
        ([TextDelta(text="yes"), Finished(reason="stop")], False),
        ([CALL, Finished(reason="tool_calls")], False),
    ],
)
def test_a_reply_without_a_word_or_a_call_is_empty(script: Turn, empty: bool) -> None:
    assert turn(script)[0].empty is empty


def test_a_stream_that_just_ends_is_a_broken_reply() -> None:
    with pytest.raises(BadReply, match="ended in the middle"):
        turn([TextDelta(text="I re")])
