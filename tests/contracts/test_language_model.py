"""What every LanguageModel must do, checked over each implementation that can be told what to say."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from typing import Any, cast

import pytest

from m3_tools.base import ToolSpec
from m3agent.llm.endpoint import EndpointModel
from m3agent.llm.protocol import (
    BadReply,
    CandidateReady,
    ContextFull,
    Finished,
    LanguageModel,
    ModelEvent,
    Options,
    Refused,
    TextDelta,
    ThinkDelta,
    ToolCallReady,
    Unavailable,
)
from m3agent.llm.scripted import ScriptedModel, candidates
from m3agent.messages import Message, ToolCall, assistant, system, user
from tests.contracts.played_server import PlayedServer, chunk, chunks

PROMPT = [system("Be brief."), user("Hi")]
TOOLS = [
    ToolSpec(
        name="read",
        description="Read a file.",
        parameters={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
    )
]
CALL = ToolCall(id="c1", name="read", arguments={"path": "a b/ü.py", "text": 'x = "1"\n\tif a < b & c:\n', "n": 3})
Teller = Callable[..., Awaitable[LanguageModel]]


@pytest.fixture(params=["scripted", "endpoint"])
def tell(request: pytest.FixtureRequest, serve: Callable[..., PlayedServer]) -> Teller:
    """Makes a model that answers with the given turns, in the implementation under test."""

    async def make(*turns: Any) -> LanguageModel:
        if request.param == "scripted":
            return ScriptedModel([scripted_turn(turn) for turn in turns])
        return await EndpointModel.connect(serve(*(played_turn(t) for t in turns)).url, delays_s=())

    return make


def scripted_turn(turn: Any) -> Any:
    match turn:
        case ("length", Message() as message):
            return [TextDelta(text=message.text), Finished(reason="length")]
        case ("cut", Message() as message):
            return [TextDelta(text=message.text), BadReply("the script ends in the middle")]
        case ("full", _):
            return [ContextFull("too long")]
        case ("refused", _):
            return [Refused("bad key")]
        case ("down", _):
            return [Unavailable("down")]
        case ("choices", list() as calls):
            return candidates(*((call, math.log(1 / len(calls))) for call in calls))
        case ("slow", Message() as message):
            return [TextDelta(text=message.text), 30.0, Finished(reason="stop")]
    return turn


def played_turn(turn: Any) -> Any:
    match turn:
        case ("length", Message() as message):
            return chunks(message, finish="length")
        case ("cut", Message() as message):
            return chunks(message)[:-3]
        case ("full", _):
            return (400, {"error": {"message": "This model's maximum context length is 4096 tokens"}})
        case ("refused", _):
            return (401, {"error": {"message": "bad key"}})
        case ("down", _):
            return (503, {"error": "loading"})
        case ("slow", Message() as message):
            return slow(message)
    return turn


def slow(message: Message) -> Callable[[Callable[[str], None]], None]:
    def write(line: Callable[[str], None]) -> None:
        import time

        line(json.dumps(chunk({"content": message.text})))
        for _ in range(300):
            time.sleep(0.02)
            line(json.dumps(chunk({})))

    return write


async def collect(model: LanguageModel, options: Options | None = None) -> list[ModelEvent]:
    return [event async for event in model.stream(PROMPT, TOOLS, options or Options())]


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(test, 20))


def test_text_arrives_in_pieces_and_ends_with_finished(tell: Teller) -> None:
    async def test() -> None:
        events = await collect(await tell(assistant("Hello, wörld.\nTwo lines.")))
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Hello, wörld.\nTwo lines."
        assert sum(isinstance(e, TextDelta) for e in events) > 1
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "stop"

    run(test())


def test_reasoning_is_apart_from_the_answer(tell: Teller) -> None:
    async def test() -> None:
        events = await collect(await tell(assistant("Yes.", reasoning="One thought, then another.")))
        assert "".join(e.text for e in events if isinstance(e, ThinkDelta)) == "One thought, then another."
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Yes."

    run(test())


def test_calls_come_whole_in_order_with_their_arguments(tell: Teller) -> None:
    async def test() -> None:
        second = ToolCall(id="c2", name="read", arguments={})
        events = await collect(await tell(assistant("Look.", calls=(CALL, second))))
        assert [e.call for e in events if isinstance(e, ToolCallReady)] == [CALL, second]
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "tool_calls"

    run(test())


def test_turns_follow_each_other(tell: Teller) -> None:
    async def test() -> None:
        model = await tell(assistant("one"), assistant("two"))
        for expected in ("one", "two"):
            events = await collect(model)
            assert "".join(e.text for e in events if isinstance(e, TextDelta)) == expected

    run(test())


def test_candidates_are_calls_best_first_and_no_ready_calls(tell: Teller, request: pytest.FixtureRequest) -> None:
    """Four replies, of which two are equal: the equal ones are one candidate with half of the share."""
    other = ToolCall(id="c9", name="read", arguments={"path": "b"})
    third = ToolCall(id="c8", name="read", arguments={"path": "c"})

    async def test() -> None:
        is_endpoint = "endpoint" in request.node.name
        turns = [assistant(calls=(c,)) for c in (other, CALL, third, CALL)]
        model = await tell(*turns) if is_endpoint else await tell(("choices", [CALL, other, third]))
        events = await collect(model, Options(candidates=4, tool_choice="read", seed=5))
        found = [e for e in events if isinstance(e, CandidateReady)]
        assert found[0].call.arguments == CALL.arguments
        assert {json.dumps(dict(c.call.arguments)) for c in found} == {
            json.dumps(dict(c.arguments)) for c in (CALL, other, third)
        }
        assert [c.score for c in found] == sorted((c.score for c in found), reverse=True)
        assert all(c.score <= 0 for c in found)
        assert not any(isinstance(e, ToolCallReady) for e in events)
        assert isinstance(events[-1], Finished)
        if is_endpoint:
            assert found[0].score == pytest.approx(math.log(0.5))

    run(test())


def test_a_truncated_reply_finishes_with_length(tell: Teller) -> None:
    async def test() -> None:
        events = await collect(await tell(("length", assistant("Half of it", calls=(CALL,)))))
        assert isinstance(events[-1], Finished)
        assert events[-1].reason == "length"
        assert not any(isinstance(e, ToolCallReady) for e in events)

    run(test())


@pytest.mark.parametrize(
    ("turn", "error"),
    [
        (("cut", assistant("Half")), BadReply),
        (("full", None), ContextFull),
        (("refused", None), Refused),
        (("down", None), Unavailable),
    ],
)
def test_errors_are_of_the_closed_set(tell: Teller, turn: Any, error: type[Exception]) -> None:
    async def test() -> None:
        model = await tell(turn)
        with pytest.raises(error) as caught:
            await collect(model)
        assert str(caught.value)

    run(test())


def test_closing_the_stream_stops_the_work_and_the_model_stays_usable(tell: Teller) -> None:
    async def test() -> None:
        model = await tell(("slow", assistant("begun")), assistant("second"))
        stream = cast("AsyncGenerator[ModelEvent, None]", model.stream(PROMPT, TOOLS, Options()))
        async for event in stream:
            assert event == TextDelta(text="begun")
            break
        await asyncio.wait_for(stream.aclose(), 2)
        events = await collect(model)
        assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "second"

    run(test())


def test_a_cancelled_task_leaves_within_half_a_second(tell: Teller) -> None:
    async def test() -> None:
        model = await tell(("slow", assistant("begun")))
        task = asyncio.create_task(collect(model))
        await asyncio.sleep(0.3)
        task.cancel()
        start = asyncio.get_running_loop().time()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.get_running_loop().time() - start < 0.5

    run(test())


def test_closing_twice_is_allowed(tell: Teller) -> None:
    async def test() -> None:
        model = await tell(assistant("x"))
        await model.aclose()
        await model.aclose()

    run(test())


def test_info_has_a_name_and_a_window(tell: Teller) -> None:
    async def test() -> None:
        info = (await tell(assistant("x"))).info
        assert info.name
        assert info.context_tokens > 0

    run(test())
