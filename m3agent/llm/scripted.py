"""A model that plays given turns: the double for tests, and the model of a recorded conversation.

A turn is an assistant message, or a list of events for full control (candidates, an error, a slow stream).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

from m3_tools.base import ToolSpec
from m3agent.llm.protocol import (
    BadReply,
    CandidateReady,
    Finished,
    ModelError,
    ModelEvent,
    ModelInfo,
    Options,
    TextDelta,
    ThinkDelta,
    ToolCallReady,
    Unavailable,
    Usage,
)
from m3agent.messages import Message, TextPart, ThinkPart, ToolCall, message_from_json

Turn = Message | Sequence[ModelEvent | ModelError | float]
"""A message, or events in order; an error is raised at its place, a number is a pause in seconds."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Asked:
    """What one `stream` call was given."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    options: Options


class ScriptedModel:
    """Plays its turns in order and keeps what it was asked in `asked`; `cancelled` counts closed streams."""

    def __init__(self, turns: Iterable[Turn], *, info: ModelInfo | None = None, delay_s: float = 0.0):
        self._turns = list(turns)
        self._info = info or ModelInfo(name="scripted", context_tokens=1_000_000)
        self._delay_s = delay_s
        self.asked: list[Asked] = []
        self.cancelled = 0

    @classmethod
    def from_file(cls, path: Path, *, delay_s: float = 0.0) -> ScriptedModel:
        """Turns from a JSONL file, one assistant message a line, as `message_to_json` writes them.

        Errors: Unavailable for a file that cannot be read or holds something else.
        """
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
            return cls([message_from_json(json.loads(line)) for line in lines if line.strip()], delay_s=delay_s)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unavailable(f"{path} is no script of assistant messages, one JSON object a line: {error}") from error

    @property
    def info(self) -> ModelInfo:
        return self._info

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec], options: Options
    ) -> AsyncIterator[ModelEvent]:
        self.asked.append(Asked(messages=tuple(messages), tools=tuple(tools), options=options))
        if len(self.asked) > len(self._turns):
            raise BadReply(f"the script has {len(self._turns)} turns and was asked for one more")
        turn = self._turns[len(self.asked) - 1]
        steps = _events(turn, messages) if isinstance(turn, Message) else turn
        try:
            for step in steps:
                await asyncio.sleep(step if isinstance(step, int | float) else self._delay_s)
                if isinstance(step, ModelError):
                    raise step
                if not isinstance(step, int | float):
                    yield step
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise

    async def aclose(self) -> None:
        """Nothing is held."""


def candidates(*scored: tuple[ToolCall, float]) -> list[ModelEvent]:
    """A turn of alternative calls with their log-probabilities, in the given order."""
    ready: list[ModelEvent] = [CandidateReady(call=call, score=score) for call, score in scored]
    return [*ready, Finished(reason="tool_calls")]


def _events(message: Message, prompt: Sequence[Message]) -> list[ModelEvent]:
    """The message as a stream: word by word, then the calls. Tokens are counted as words, roughly."""
    events: list[ModelEvent] = []
    for part in message.parts:
        match part:
            case ThinkPart(text=text):
                events += [ThinkDelta(text=piece) for piece in _pieces(text)]
            case TextPart(text=text):
                events += [TextDelta(text=piece) for piece in _pieces(text)]
            case ToolCall():
                events.append(ToolCallReady(call=part))
    usage = Usage(
        prompt_tokens=sum(len(m.text.split()) + len(m.reasoning.split()) for m in prompt),
        completion_tokens=len(events),
    )
    return [*events, Finished(reason="tool_calls" if message.tool_calls else "stop", usage=usage)]


def _pieces(text: str) -> list[str]:
    """The text cut before each word, so that joining the pieces gives it back."""
    pieces: list[str] = []
    for i, char in enumerate(text):
        if i == 0 or (text[i - 1].isspace() and not char.isspace()):
            pieces.append("")
        pieces[-1] += char
    return pieces
