"""One turn of the model: its stream becomes events for who watches and one reply for the loop."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import cast

from m3_tools.base import ToolSpec
from m3agent.events import AnswerText, Prefill, ThinkText, TurnEnded, TurnStarted
from m3agent.images import without_images
from m3agent.llm.protocol import (
    BadReply,
    CandidateReady,
    Finished,
    FinishReason,
    LanguageModel,
    ModelEvent,
    Options,
    PrefillProgress,
    TextDelta,
    ThinkDelta,
    ToolCallReady,
    Usage,
)
from m3agent.messages import Message, ToolCall, assistant
from m3agent.sinks import EventSink


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reply:
    """A complete turn. `candidates` are filled instead of calls when `Options.candidates` asked for several."""

    message: Message
    finish: FinishReason
    usage: Usage
    candidates: tuple[CandidateReady, ...] = ()

    @property
    def truncated(self) -> bool:
        return self.finish == "length"

    @property
    def empty(self) -> bool:
        """Neither a word nor a call; reasoning alone tells nobody anything."""
        return not (self.message.text.strip() or self.message.tool_calls or self.candidates)


async def take_turn(
    model: LanguageModel,
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    options: Options,
    sink: EventSink,
    *,
    number: int,
) -> Reply:
    """Ask the model once. Nothing is added to a conversation here and nothing is run.

    A truncated reply keeps its text and loses its calls: a call before the cut may belong to a plan that was cut off.
    Cancelling the task closes the stream, which stops the model's work.
    Errors: ModelError and its children; BadReply when the stream ends without `Finished`.
    """
    sink(TurnStarted(turn=number))
    start = time.monotonic()
    thoughts: list[str] = []
    answer: list[str] = []
    calls: list[ToolCall] = []
    candidates: list[CandidateReady] = []
    finished: Finished | None = None
    progress: PrefillProgress | None = None
    if not model.info.reads_images:
        messages = [without_images(message) for message in messages]
    stream = cast("AsyncGenerator[ModelEvent, None]", model.stream(messages, tools, options))
    async with aclosing(stream):
        async for event in stream:
            match event:
                case ThinkDelta(text=text):
                    thoughts.append(text)
                    sink(ThinkText(text=text))
                case TextDelta(text=text):
                    answer.append(text)
                    sink(AnswerText(text=text))
                case PrefillProgress():
                    if event != progress:  # while forks decode, the engine repeats the last state
                        sink(Prefill(done_tokens=event.done_tokens, total_tokens=event.total_tokens))
                    progress = event
                case ToolCallReady(call=call):
                    calls.append(call)
                case CandidateReady():
                    candidates.append(event)
                case Finished():
                    finished = event
    if finished is None:
        raise BadReply("the model's reply ended in the middle; nothing of it was run")
    if finished.reason == "length":
        calls.clear()
    sink(
        TurnEnded(
            turn=number,
            finish=finished.reason,
            prompt_tokens=finished.usage.prompt_tokens,
            cached_tokens=finished.usage.cached_tokens,
            completion_tokens=finished.usage.completion_tokens,
            duration_s=time.monotonic() - start,
        )
    )
    return Reply(
        message=assistant("".join(answer), reasoning="".join(thoughts), calls=tuple(calls)),
        finish=finished.reason,
        usage=finished.usage,
        candidates=tuple(candidates),
    )
