"""The local engine behind its own server, seen through the endpoint: the same model must say the same."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from m3_runtime.chat.session import ChatEngine
from m3_tools.base import ToolSpec
from m3agent.llm.endpoint import EndpointModel
from m3agent.llm.in_process import InProcessModel
from m3agent.llm.protocol import (
    CandidateReady,
    Finished,
    LanguageModel,
    ModelEvent,
    Options,
    TextDelta,
    ThinkDelta,
    ToolCallReady,
    Usage,
)
from m3agent.messages import ToolCall, system, user
from tests.contracts.test_in_process import PROMPT, TOOLS, checkpoint

__all__ = ["checkpoint"]

PICK = ToolSpec(
    name="pick",
    description="Pick one.",
    parameters={
        "type": "object",
        "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}, "sure": {"type": "boolean"}},
        "required": ["colour", "sure"],
    },
)
LIMIT = 2048
Seen = tuple[str, str, list[tuple[str, dict[str, object]]], str, Usage]


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> ChatEngine:
    """An engine like the server's. Both are asked the same in the same order, so both find the same in their caches.

    A prompt that is computed in other portions differs in the last bits, and a model of noise has close choices.
    """
    return ChatEngine.load(checkpoint, max_context=LIMIT)


@pytest.fixture(scope="module")
def url(checkpoint: Path) -> Iterator[str]:
    """The address of a server of the small random model."""
    import uvicorn

    from m3_runtime.server import create_app

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    app = create_app(ChatEngine.load(checkpoint, max_context=LIMIT), api_key="secret")
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/v1"
    server.should_exit = True
    thread.join(10)


async def seen(model: LanguageModel, options: Options) -> Seen:
    events = [event async for event in model.stream(PROMPT, [*TOOLS, PICK], options)]
    calls: list[ToolCall] = [e.call for e in events if isinstance(e, ToolCallReady)]
    finished = events[-1]
    assert isinstance(finished, Finished)
    return (
        "".join(e.text for e in events if isinstance(e, ThinkDelta)),
        "".join(e.text for e in events if isinstance(e, TextDelta)),
        [(call.name, dict(call.arguments)) for call in calls],
        finished.reason,
        finished.usage,
    )


@pytest.mark.parametrize(
    "options",
    [
        Options(max_tokens=40, temperature=0, seed=1, thinking="disabled"),
        Options(max_tokens=40, temperature=1, seed=5, thinking="disabled"),
        Options(max_tokens=20, temperature=0, seed=1, thinking="enabled"),
        Options(max_tokens=200, temperature=0, seed=3, thinking="disabled", tool_choice="pick"),
    ],
    ids=["greedy", "sampled", "reasoning", "forced call"],
)
def test_the_same_turn_directly_and_over_http(engine: ChatEngine, url: str, options: Options) -> None:
    async def main() -> tuple[Seen, Seen]:
        direct = InProcessModel(engine)
        remote = await EndpointModel.connect(url, api_key="secret")
        try:
            return await seen(direct, options), await seen(remote, options)
        finally:
            await direct.aclose()
            await remote.aclose()

    directly, over_http = asyncio.run(asyncio.wait_for(main(), 120))
    assert over_http == directly
    if options.tool_choice:
        assert directly[3] == "tool_calls"
        assert directly[2][0][0] == "pick"


def test_candidates_are_the_same_directly_and_over_http(engine: ChatEngine, url: str) -> None:
    options = Options(
        max_tokens=80,
        temperature=0,
        thinking="disabled",
        tool_choice="pick",
        candidates=2,
        fixed_arguments={"colour": ["red"]},
        proposed=[{"colour": "blue", "sure": True}, {"colour": "blue", "sure": False}],
    )

    async def main() -> tuple[list[ModelEvent], list[ModelEvent]]:
        direct = InProcessModel(engine)
        remote = await EndpointModel.connect(url, api_key="secret")
        try:
            prompt = [system("Be exact."), user("Only here.")]
            one = [e async for e in direct.stream(prompt, [*TOOLS, PICK], options)]
            return one, [e async for e in remote.stream(prompt, [*TOOLS, PICK], options)]
        finally:
            await direct.aclose()
            await remote.aclose()

    directly, over_http = asyncio.run(asyncio.wait_for(main(), 120))
    assert over_http == directly
    assert [e.proposed for e in directly if isinstance(e, CandidateReady)] == [False, False, True, True]


def test_a_call_that_the_limit_cuts_off_is_no_call_on_either_way(engine: ChatEngine, url: str) -> None:
    options = Options(max_tokens=25, temperature=0, seed=3, thinking="disabled", tool_choice="edit_line")

    async def main() -> tuple[Seen, Seen]:
        direct = InProcessModel(engine)
        remote = await EndpointModel.connect(url, api_key="secret")
        try:
            return await seen(direct, options), await seen(remote, options)
        finally:
            await direct.aclose()
            await remote.aclose()

    for _, _, calls, reason, usage in asyncio.run(asyncio.wait_for(main(), 120)):
        assert (calls, reason, usage.completion_tokens) == ([], "length", 25)


def test_a_wrong_key_is_refused_with_the_way_out(url: str) -> None:
    from m3agent.llm.protocol import Refused

    with pytest.raises(Refused, match="M3_API_KEY"):
        asyncio.run(EndpointModel.connect(url, api_key="wrong"))
