"""The local engine behind the seam, with a small random model: what it says is noise, how it says it is the point."""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest
from PIL import Image

from m3_tools.base import ToolSpec
from m3agent.llm.in_process import InProcessModel
from m3agent.llm.protocol import (
    CandidateReady,
    ContextFull,
    Finished,
    LanguageModel,
    ModelEvent,
    Options,
    PrefillProgress,
    Refused,
    TextDelta,
    ThinkDelta,
    ToolCallReady,
    Unavailable,
)
from m3agent.messages import ImagePart, Message, assistant, system, user
from tests.runtime.conftest import EDIT_LINE, write_seeing_checkpoint, write_tiny_checkpoint

FUNCTION = EDIT_LINE["function"]
TOOLS = [
    ToolSpec(name=FUNCTION["name"], description=FUNCTION["description"], parameters=FUNCTION["parameters"]),
]
PROMPT = [system("Be brief."), user("Hi")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("tiny"))


def test_a_model_with_an_image_side_says_so_and_answers_a_picture(checkpoint: Path, tmp_path: Path) -> None:
    write_seeing_checkpoint(tmp_path)
    file = io.BytesIO()
    Image.new("RGB", (112, 112), "red").save(file, "PNG")
    messages = [user("What is it?", ImagePart(media_type="image/png", data=file.getvalue()))]

    async def look(model: InProcessModel) -> None:
        assert model.info.reads_images
        (*_, end) = await ask(model, messages, Options(max_tokens=4))
        assert isinstance(end, Finished)
        assert end.usage.prompt_tokens > 16

    async def refuse(model: InProcessModel) -> None:
        assert not model.info.reads_images
        with pytest.raises(Refused, match="reads text only"):
            await ask(model, messages, Options(max_tokens=4))

    with_model(tmp_path, look)
    with_model(checkpoint, refuse)


def with_model(checkpoint: Path, test: Any) -> Any:
    async def main() -> Any:
        model = await InProcessModel.load(checkpoint)
        try:
            return await test(model)
        finally:
            await model.aclose()
            await model.aclose()

    return asyncio.run(asyncio.wait_for(main(), 60))


async def ask(model: LanguageModel, messages: list[Message], options: Options) -> list[ModelEvent]:
    return [event async for event in model.stream(messages, TOOLS, options)]


def test_a_reply_streams_and_ends_with_finished_and_exact_counts(checkpoint: Path) -> None:
    async def test(model: InProcessModel) -> list[ModelEvent]:
        assert model.info.name
        assert model.info.context_tokens > 0
        assert not model.info.is_nano
        return await ask(model, PROMPT, Options(max_tokens=12, seed=1, thinking="disabled"))

    events = with_model(checkpoint, test)
    finished = events[-1]
    assert isinstance(finished, Finished)
    assert finished.usage.completion_tokens <= 12
    assert isinstance(events[0], PrefillProgress)
    assert events[0].total_tokens == finished.usage.prompt_tokens
    assert all(isinstance(e, PrefillProgress | TextDelta | ThinkDelta | ToolCallReady) for e in events[:-1])


def test_the_same_seed_gives_the_same_events(checkpoint: Path) -> None:
    async def test(model: InProcessModel) -> list[list[ModelEvent]]:
        options = Options(max_tokens=20, seed=7, thinking="disabled")
        return [[e for e in await ask(model, PROMPT, options) if isinstance(e, TextDelta)] for _ in range(2)]

    first, second = with_model(checkpoint, test)
    assert "".join(e.text for e in first) == "".join(e.text for e in second) != ""


def test_candidates_are_bound_to_the_tool_and_the_values(checkpoint: Path) -> None:
    options = Options(
        candidates=4,
        tool_choice="edit_line",
        fixed_arguments={"path": ["a.py"], "line": ["L1|", "L2|"]},
        max_tokens=40,
        thinking="disabled",
    )

    async def test(model: InProcessModel) -> list[ModelEvent]:
        return await ask(model, PROMPT, options)

    events = with_model(checkpoint, test)
    found = [e for e in events if isinstance(e, CandidateReady)]
    assert [e.score for e in found] == sorted((e.score for e in found), reverse=True)
    for candidate in found:
        assert candidate.call.name == "edit_line"
        assert candidate.call.arguments["path"] == "a.py"
        assert candidate.call.arguments["line"] in ("L1|", "L2|")
    assert not any(isinstance(e, ToolCallReady) for e in events)
    assert isinstance(events[-1], Finished)


def test_the_next_turn_finds_the_last_one_in_the_cache(checkpoint: Path) -> None:
    """Longer than a page of the cache, so that there is something to keep."""

    async def test(model: InProcessModel) -> Finished:
        options = Options(max_tokens=8, seed=2, thinking="disabled")
        messages = [system("Be brief. " * 60), user("Hi")]
        events = await ask(model, messages, options)
        said = "".join(e.text for e in events if isinstance(e, TextDelta))
        finished = (await ask(model, [*messages, assistant(said), user("Go on")], options))[-1]
        assert isinstance(finished, Finished)
        return finished

    finished = with_model(checkpoint, test)
    assert finished.usage.cached_tokens >= 128
    assert finished.usage.cached_tokens % 128 == 0


def test_closing_the_stream_stops_the_work_at_once_and_the_model_stays_usable(checkpoint: Path) -> None:
    async def test(model: InProcessModel) -> float:
        endless = Options(max_tokens=600, seed=1, thinking="disabled")
        stream = cast("AsyncGenerator[ModelEvent, None]", model.stream(PROMPT, TOOLS, endless))
        async with aclosing(stream):
            async for event in stream:
                if isinstance(event, TextDelta):
                    break
            start = time.monotonic()
        took = time.monotonic() - start
        assert isinstance((await ask(model, PROMPT, Options(max_tokens=4, thinking="disabled")))[-1], Finished)
        return took

    assert with_model(checkpoint, test) < 0.5


def test_the_event_loop_stays_free_while_the_model_computes(checkpoint: Path) -> None:
    async def test(model: InProcessModel) -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.005)
                ticks += 1

        ticking = asyncio.create_task(tick())
        await ask(model, PROMPT, Options(max_tokens=60, seed=1, thinking="disabled"))
        ticking.cancel()
        return ticks

    assert with_model(checkpoint, test) >= 3


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ([user("word " * 200_000)], ContextFull),
        ([user("x", ImagePart(media_type="image/png", data=b"p"))], Refused),
        ([user("x"), system("late")], Refused),
    ],
    ids=["too long", "image", "late system"],
)
def test_what_cannot_be_asked_is_an_error_of_the_closed_set(
    checkpoint: Path, messages: list[Message], error: type[Exception]
) -> None:
    async def test(model: InProcessModel) -> None:
        with pytest.raises(error):
            await ask(model, messages, Options(max_tokens=4))
        assert isinstance((await ask(model, PROMPT, Options(max_tokens=4, thinking="disabled")))[-1], Finished)

    with_model(checkpoint, test)


def test_a_folder_that_is_no_checkpoint_is_unavailable_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{")

    def load() -> Coroutine[Any, Any, InProcessModel]:
        return InProcessModel.load(tmp_path)

    with pytest.raises(Unavailable, match="cannot be loaded"):
        asyncio.run(load())
