"""One answer while it is generated: token ids in, events out, and in the end the message that it amounts to."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from m3_model.tokenizer import Tokenizer
from m3_runtime.chat.markers import StopText
from m3_runtime.chat.parser import AnswerParser, BadCall, Call, ParserEvent, TextDelta, ThinkDelta
from m3_runtime.chat.syntax import NAMESPACE, THINK_END, THINK_START
from m3_runtime.chat.template import normalise


class Answer:
    """Decodes and parses one answer."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        tools: Mapping[str, Mapping[str, Any]],
        *,
        thinking: str,
        key: str,
        number: int = 0,
        stop: Sequence[str] = (),
    ):
        self._parser = AnswerParser(tools, thinking=thinking)
        self.tokenizer = tokenizer
        self._decoder = tokenizer.incremental()
        self._markers = {tokenizer.token_id(m): m for m in (NAMESPACE, THINK_START, THINK_END)}
        self._key, self._number, self._stop = key, number, StopText(stop)
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[Call] = []
        self.has_bad_call = False
        self.token_ids: list[int] = []

    def feed(self, token_ids: Sequence[int]) -> list[ParserEvent]:
        """Take generated ids. Special tokens other than the namespace and think marks carry no text."""
        events: list[ParserEvent] = []
        for token in token_ids:
            self.token_ids.append(token)
            if token in self.tokenizer.special_ids:
                events += self._parser.feed(self._decoder.flush())
                if token in self._markers:
                    events += self._parser.feed_marker(self._markers[token])
            elif text := self._decoder.push(token):
                events += self._parser.feed(text)
        return self._note(events)

    def finish(self) -> list[ParserEvent]:
        """What was still held back; a call that was cut off is a BadCall."""
        events = self._note(self._parser.feed(self._decoder.flush()) + self._parser.finish())
        return events + self._text_events(self._stop.flush())

    @property
    def stopped(self) -> bool:
        """Whether a stop text came; the answer ends before it, whatever else was generated."""
        return self._stop.found

    def message(self) -> dict[str, Any]:
        """The answer as a normalised message."""
        calls = [{"function": {"name": c.name, "arguments": dict(c.arguments)}} for c in self.calls]
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(self._text),
            "reasoning_content": "".join(self._reasoning),
            "tool_calls": calls,
        }
        return normalise([message])[0]

    def _note(self, events: list[ParserEvent]) -> list[ParserEvent]:
        noted: list[ParserEvent] = []
        for event in events:
            if self.stopped:
                break
            if isinstance(event, TextDelta):
                noted += self._text_events(self._stop.feed(event.text))
                continue
            noted += self._text_events(self._stop.flush())
            if isinstance(event, Call):
                event = dataclasses.replace(event, id=self._call_id())
                self.calls.append(event)
            elif isinstance(event, ThinkDelta):
                self._reasoning.append(event.text)
            elif isinstance(event, BadCall):
                self.has_bad_call = True
            noted.append(event)
        return noted

    def _text_events(self, text: str) -> list[ParserEvent]:
        if not text:
            return []
        self._text.append(text)
        return [TextDelta(text=text)]

    def _call_id(self) -> str:
        """The same conversation gives the same id, so that a replay equals its recording."""
        name = f"{self._key}/{self._number}/{len(self.calls)}"
        return "call_" + hashlib.sha256(name.encode()).hexdigest()[:12]
