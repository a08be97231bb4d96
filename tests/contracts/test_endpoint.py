"""What only the endpoint does: the request it sends, retries, and the leaks of real servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, cast

import pytest

from m3agent.llm.endpoint import EndpointModel
from m3agent.llm.protocol import (
    BadReply,
    CandidateReady,
    Finished,
    ModelEvent,
    Options,
    PrefillProgress,
    Refused,
    TextDelta,
    ThinkDelta,
    ToolCallReady,
    Unavailable,
)
from m3agent.messages import ImagePart, ToolCall, assistant, system, tool_result, user
from tests.contracts.played_server import PlayedServer, chunk
from tests.contracts.test_language_model import CALL, PROMPT, TOOLS, slow

Serve = Callable[..., PlayedServer]


def ask(
    server: PlayedServer, options: Options | None = None, messages: Any = PROMPT, **choices: Any
) -> list[ModelEvent]:
    async def main() -> list[ModelEvent]:
        model = await EndpointModel.connect(server.url, delays_s=(0.01, 0.01), **choices)
        try:
            return [event async for event in model.stream(messages, TOOLS, options or Options())]
        finally:
            await model.aclose()

    return asyncio.run(asyncio.wait_for(main(), 20))


def text_of(events: list[ModelEvent]) -> str:
    return "".join(e.text for e in events if isinstance(e, TextDelta))


def test_the_request_carries_the_conversation_as_the_protocol_says(serve: Serve) -> None:
    server = serve(assistant("ok"))
    history = [
        system("S"),
        user("look", ImagePart(media_type="image/png", data=b"\x89PNG")),
        assistant("", reasoning="hm", calls=(CALL,)),
        tool_result("c1", "text"),
    ]
    options = Options(max_tokens=77, temperature=0.5, seed=9, thinking="disabled", tool_choice="read")
    ask(server, options, history, api_key="secret")
    body = server.requests[0]
    assert server.headers[0]["authorization"] == "Bearer secret"
    assert body["messages"][1]["content"][0]["image_url"]["url"] == "data:image/png;base64,iVBORw=="
    assert body["messages"][2]["reasoning_content"] == "hm"
    assert json.loads(body["messages"][2]["tool_calls"][0]["function"]["arguments"]) == dict(CALL.arguments)
    assert body["messages"][3] == {"role": "tool", "content": "text", "tool_call_id": "c1"}
    assert (body["max_tokens"], body["temperature"], body["seed"], body["stream"]) == (77, 0.5, 9, True)
    assert body["chat_template_kwargs"] == {"thinking_mode": "disabled"}
    assert body["tool_choice"] == {"type": "function", "function": {"name": "read"}}
    assert body["tools"][0]["function"]["name"] == "read"


def test_usage_and_window_come_from_the_server(serve: Serve) -> None:
    async def main() -> int:
        model = await EndpointModel.connect(serve(context=1_048_576).url)
        await model.aclose()
        return model.info.context_tokens

    assert asyncio.run(main()) == 1_048_576
    finished = ask(serve(assistant("ok")))[-1]
    assert isinstance(finished, Finished)
    assert (finished.usage.prompt_tokens, finished.usage.cached_tokens, finished.usage.completion_tokens) == (11, 8, 3)


def test_a_busy_server_is_asked_again_before_the_first_byte(serve: Serve) -> None:
    server = serve((503, {"error": "loading"}), (429, {"error": "busy"}), assistant("now"))
    assert text_of(ask(server)) == "now"
    assert len(server.requests) == 3


def test_nothing_is_asked_again_after_the_first_byte(serve: Serve) -> None:
    server = serve([chunk({"content": "half"})], assistant("again"))
    with pytest.raises(BadReply, match="middle"):
        ask(server)
    assert len(server.requests) == 1


def test_a_bad_request_is_not_repeated_and_says_what_the_server_said(serve: Serve) -> None:
    server = serve((400, {"error": {"message": "top_k is not supported"}}))
    with pytest.raises(Refused, match="top_k is not supported"):
        ask(server)
    assert len(server.requests) == 1


def test_nobody_there_is_unavailable_and_says_so() -> None:
    with pytest.raises(Unavailable, match="is the server running"):
        asyncio.run(EndpointModel.connect("http://127.0.0.1:9/v1", delays_s=()))


def test_an_unknown_model_is_refused_with_the_names_that_exist(serve: Serve) -> None:
    with pytest.raises(Refused, match="it has: played"):
        asyncio.run(EndpointModel.connect(serve().url, model="other"))


def test_a_server_that_starts_up_is_waited_for(serve: Serve) -> None:
    server = serve(assistant("up"))
    server.model_status = [503]
    assert text_of(ask(server)) == "up"


@pytest.mark.parametrize(
    "payload", ["{", "[]", '{"error": {"message": "out of memory"}}'], ids=["torn", "list", "error"]
)
def test_a_broken_chunk_is_a_bad_reply(serve: Serve, payload: str) -> None:
    with pytest.raises(BadReply):
        ask(serve([chunk({"content": "x"}), payload]))


@pytest.mark.parametrize("arguments", ['{"path": "a', "[1]", '"a"'])
def test_a_call_whose_arguments_do_not_parse_never_becomes_a_call(serve: Serve, arguments: str) -> None:
    piece = {"index": 0, "id": "1", "function": {"name": "read", "arguments": arguments}}
    with pytest.raises(BadReply):
        ask(serve([chunk({"tool_calls": [piece]}), chunk({}, "tool_calls"), "[DONE]"]))


def test_calls_without_ids_or_with_equal_ids_become_distinct(serve: Serve) -> None:
    pieces = [{"index": i, "id": "", "function": {"name": "read", "arguments": "{}"}} for i in range(2)]
    twins = [{"index": i, "id": "x", "function": {"name": "read", "arguments": "{}"}} for i in range(2)]
    for calls in (pieces, twins):
        events = ask(serve([chunk({"tool_calls": calls}), chunk({}, "tool_calls"), "[DONE]"]))
        ids = [e.call.id for e in events if isinstance(e, ToolCallReady)]
        assert len(set(ids)) == 2
        assert all(ids)


def test_fragments_of_parallel_calls_are_joined_by_index(serve: Serve) -> None:
    def piece(index: int, arguments: str, **head: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [{"index": index, "function": {"arguments": arguments, **head}}]})

    events = ask(
        serve(
            [
                piece(0, '{"pa', name="read"),
                piece(1, '{"path": ', name="read"),
                piece(0, 'th": "a"}'),
                piece(1, '"b"}'),
                chunk({}, "tool_calls"),
                "[DONE]",
            ]
        )
    )
    assert [e.call.arguments for e in events if isinstance(e, ToolCallReady)] == [{"path": "a"}, {"path": "b"}]


def test_reasoning_markers_that_leak_into_the_content_are_reasoning(serve: Serve) -> None:
    pieces = ["<mm:", "think>because", " of</mm", ":think>Yes, `<mm:think>` is a marker."]
    events = ask(serve([*(chunk({"content": p}) for p in pieces), chunk({}, "stop"), "[DONE]"]))
    assert "".join(e.text for e in events if isinstance(e, ThinkDelta)) == "because of"
    assert text_of(events) == "Yes, `<mm:think>` is a marker."


def test_calls_that_leak_as_text_are_refused_with_the_way_out(serve: Serve) -> None:
    leak = ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="read">'
    with pytest.raises(BadReply, match="tool call parser"):
        ask(serve([chunk({"content": leak}), chunk({}, "stop"), "[DONE]"]))


def test_every_candidate_is_asked_with_its_own_seed(serve: Serve) -> None:
    server = serve(*[assistant(calls=(CALL,))] * 3)
    ask(server, Options(candidates=3, tool_choice="read", seed=100))
    assert sorted(body["seed"] for body in server.requests) == [100, 101, 102]


def test_at_temperature_0_the_candidates_of_a_foreign_server_still_differ(serve: Serve) -> None:
    server = serve(*[assistant(calls=(CALL,))] * 3)
    ask(server, Options(candidates=2, tool_choice="read", temperature=0.0))
    ask(server, Options(tool_choice="read", temperature=0.0))
    assert [body["temperature"] for body in server.requests] == [1.0, 1.0, 0.0]
    assert not any({"candidates", "fixed_arguments", "proposed", "return_progress"} & set(b) for b in server.requests)


def test_a_server_that_searches_is_asked_once_and_its_scores_are_kept(serve: Serve) -> None:
    def choice(index: int, score: float, proposed: bool) -> dict[str, Any]:
        function = {"name": "read", "arguments": json.dumps({"path": f"{index}.py"})}
        delta = {"tool_calls": [{"index": 0, "id": f"call_{index}", "function": function}]}
        extra = {"index": index, "finish_reason": "tool_calls", "score": score, "proposed": proposed}
        return {"choices": [{**extra, "delta": delta}]}

    progress = {"choices": [], "prompt_progress": {"total": 9, "processed": 4}}
    turn = [progress, choice(0, -0.25, False), choice(1, -3.5, True), "[DONE]"]
    server = serve(turn, extensions=["candidates", "fixed_arguments", "proposed", "return_progress"])
    fixed = {"path": ("0.py", "1.py")}
    own = [{"path": "1.py"}]
    options = Options(candidates=2, tool_choice="read", temperature=0.0, fixed_arguments=fixed, proposed=own)
    *found, finished = ask(server, options)
    (body,) = server.requests
    assert (body["candidates"], body["fixed_arguments"], body["proposed"]) == (2, {"path": ["0.py", "1.py"]}, own)
    assert found[0] == PrefillProgress(done_tokens=4, total_tokens=9)
    first, second = (ToolCall(id=f"call_{i}", name="read", arguments={"path": f"{i}.py"}) for i in (0, 1))
    assert found[1:] == [
        CandidateReady(call=first, score=-0.25),
        CandidateReady(call=second, score=-3.5, proposed=True),
    ]
    assert isinstance(finished, Finished)
    assert finished.reason == "tool_calls"


def test_candidates_survive_some_broken_replies(serve: Serve) -> None:
    server = serve([chunk({"content": "half"})], assistant(calls=(ToolCall(id="1", name="read", arguments={}),)))
    events = ask(server, Options(candidates=2, tool_choice="read"))
    assert [type(e).__name__ for e in events] == ["CandidateReady", "Finished"]


def test_a_server_that_goes_down_during_candidates_is_one_error(serve: Serve) -> None:
    server = serve(*[(500, {"error": "oom"})] * 9)
    with pytest.raises(Unavailable, match="oom"):
        ask(server, Options(candidates=2, tool_choice="read"))


def test_a_closed_stream_closes_the_connection_so_that_the_server_stops(serve: Serve) -> None:
    server = serve(slow(assistant("begun")))

    async def main() -> None:
        model = await EndpointModel.connect(server.url)
        async with aclosing(cast("AsyncGenerator[ModelEvent, None]", model.stream(PROMPT, TOOLS, Options()))) as stream:
            async for _ in stream:
                break
        await model.aclose()

    asyncio.run(asyncio.wait_for(main(), 20))
    assert server.left.wait(5)
