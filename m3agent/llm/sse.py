"""One streamed chat completion, taken apart: chunks of the OpenAI protocol in, model events out."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any

from m3agent.llm.protocol import (
    BadReply,
    CandidateReady,
    Finished,
    FinishReason,
    ModelEvent,
    PrefillProgress,
    ThinkDelta,
    ToolCallReady,
    Usage,
)
from m3agent.llm.think_markers import ThinkMarkers
from m3agent.messages import ToolCall

LEAKED_CALL = ("]<]minimax[>[<tool_call>", "<tool_call>\n<invoke name=")
"""M3's call syntax as plain text: the server did not parse it."""


@dataclasses.dataclass
class _PartialCall:
    id: str = ""
    name: str = ""
    arguments: str = ""


class ChunkAssembler:
    """Reads the `data:` payloads of one reply in order. Calls are complete only at its end; one cut off has none."""

    def __init__(self) -> None:
        self._calls: dict[int, _PartialCall] = {}
        self._markers = ThinkMarkers()
        self._text = ""
        self._finish = ""
        self._usage = Usage()
        self._num_candidates = 0

    def feed(self, payload: str) -> Iterator[ModelEvent]:
        """The events in one chunk. Errors: BadReply for a chunk that is no JSON object or reports an error."""
        try:
            chunk = json.loads(payload)
            if not isinstance(chunk, dict):
                raise ValueError("not an object")
        except ValueError as error:
            raise BadReply(f"the server sent a chunk that is no JSON object: {payload[:80]!r}") from error
        if error_text := chunk.get("error"):
            raise BadReply(f"the server failed in the middle of the reply: {error_message(error_text)}")
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = _usage(usage)
        if isinstance(progress := chunk.get("prompt_progress"), dict):
            yield PrefillProgress(done_tokens=progress.get("processed") or 0, total_tokens=progress.get("total") or 0)
        for choice in (chunk.get("choices") or [])[:1]:
            if isinstance(score := choice.get("score"), int | float):
                yield self._candidate(choice, float(score))
                continue
            delta = choice.get("delta") or {}
            if thought := delta.get("reasoning_content") or delta.get("reasoning"):
                yield ThinkDelta(text=thought)
            if content := delta.get("content"):
                self._text += content
                yield from self._markers.feed(content)
            for position, piece in enumerate(delta.get("tool_calls") or []):
                self._add(position, piece)
            self._finish = choice.get("finish_reason") or self._finish

    def finish(self) -> Iterator[ModelEvent]:
        """The calls and the end. Errors: BadReply when the reply was cut, or a call in it does not parse."""
        yield from self._markers.finish()
        if self._finish == "length":
            yield Finished(reason="length", usage=self._usage)
            return
        if self._finish not in ("stop", "tool_calls", "function_call"):
            what = f"stopped the reply: {self._finish}" if self._finish else "ended the reply in the middle"
            raise BadReply(f"the server {what}")
        if not self._calls and any(mark in self._text for mark in LEAKED_CALL):
            raise BadReply(
                "the server sent M3's tool calls as plain text. Start it with its tool call parser for MiniMax M3 "
                "(vLLM: --enable-auto-tool-choice --tool-call-parser, SGLang: --tool-call-parser)"
            )
        calls = [_complete(partial, number) for number, (_, partial) in enumerate(sorted(self._calls.items()), start=1)]
        seen: set[str] = set()
        for number, call in enumerate(calls, start=1):
            unique = call if call.id not in seen else dataclasses.replace(call, id=f"{call.id}-{number}")
            seen.add(unique.id)
            yield ToolCallReady(call=unique)
        reason: FinishReason = "tool_calls" if calls or self._num_candidates else "stop"
        yield Finished(reason=reason, usage=self._usage)

    def _candidate(self, choice: Mapping[str, Any], score: float) -> CandidateReady:
        """A choice of `m3 serve` that is one of several alternatives, whole in its chunk."""
        pieces = (choice.get("delta") or {}).get("tool_calls") or []
        if len(pieces) != 1:
            raise BadReply(f"a candidate must be one call, and this one holds {len(pieces)}")
        function = pieces[0].get("function") or {}
        self._num_candidates += 1
        self._finish = choice.get("finish_reason") or self._finish
        partial = _PartialCall(
            id=pieces[0].get("id") or "", name=function.get("name") or "", arguments=function.get("arguments") or ""
        )
        call = _complete(partial, self._num_candidates)
        return CandidateReady(call=call, score=score, proposed=bool(choice.get("proposed")))

    def _add(self, position: int, piece: Mapping[str, Any]) -> None:
        """One piece of a call; servers send the id and the name once and the arguments in fragments."""
        index = piece.get("index")
        partial = self._calls.setdefault(position if index is None else int(index), _PartialCall())
        function = piece.get("function") or {}
        partial.id = partial.id or piece.get("id") or ""
        partial.name = partial.name or function.get("name") or ""
        arguments = function.get("arguments") or ""
        partial.arguments += arguments if isinstance(arguments, str) else json.dumps(arguments)


def _complete(partial: _PartialCall, number: int) -> ToolCall:
    try:
        arguments = json.loads(partial.arguments or "{}")
    except ValueError as error:
        what = f"the arguments of the call of {partial.name or 'a tool'} do not parse: {error}"
        raise BadReply(what, by_model=True) from error
    if not isinstance(arguments, dict) or not partial.name:
        what = f"a call has no name or no named arguments: {partial.name!r} {partial.arguments[:80]!r}"
        raise BadReply(what, by_model=True)
    return ToolCall(id=partial.id or f"call_{number}", name=partial.name, arguments=arguments)


def _usage(value: Mapping[str, Any]) -> Usage:
    details = value.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=value.get("prompt_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
        completion_tokens=value.get("completion_tokens") or 0,
    )


def error_message(value: Any) -> str:
    """The text in an error of the OpenAI form, or of any other, short."""
    if isinstance(value, Mapping):
        inner = value.get("error", value.get("message", value.get("detail", value)))
        return error_message(inner) if inner is not value else json.dumps(value)[:300]
    return str(value)[:300]
