"""Answers in OpenAI's chat completion format: events to chunks of a stream, or to one whole completion."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from m3_runtime.chat.events import Candidate, ChatEvent, Finish, PrefillProgress, TokenScore, TokenScores, Usage
from m3_runtime.chat.parser import BadCall, Call, TextDelta, ThinkDelta


class CompletionWriter:
    """Writes the answers to one request. Answers are choices; the candidates of a search are choices, too, best first.

    Each candidate has its log-probability as `score`, and `proposed` true for the client's own.
    """

    def __init__(self, completion_id: str, created: int, model: str, *, num_answers: int = 1):
        self._id, self._created, self._model = completion_id, created, model
        self._messages: list[dict[str, Any]] = [{"role": "assistant", "content": None} for _ in range(num_answers)]
        self._logprobs: list[dict[str, Any] | None] = [None] * num_answers
        self._num_calls = [0] * num_answers
        self._finished: dict[int, Finish] = {}
        self._candidates: list[dict[str, Any]] = []

    def first_chunks(self) -> list[dict[str, Any]]:
        return [self._chunk(i, {"role": "assistant", "content": ""}, None) for i in range(len(self._messages))]

    def chunks(self, index: int, event: ChatEvent, *, return_progress: bool) -> list[dict[str, Any]]:
        """The stream's chunks for one event of an answer."""
        if isinstance(event, Finish):
            self._finished[index] = event
            told = self._candidates and event.reason == "tool_calls"  # each candidate has said so itself
            return [] if told else [self._chunk(index, {}, event.reason)]
        if isinstance(event, PrefillProgress):
            progress = {"total": event.total_tokens, "processed": event.done_tokens}
            return [{**self._chunk_head(), "prompt_progress": progress}] if return_progress else []
        if isinstance(event, Candidate):
            choice = self._candidate(event)
            return [{**self._chunk_head(), "choices": [{**choice, "delta": _call_json(event.call, 0)}]}]
        if isinstance(event, TokenScores):
            return [self._chunk(index, {}, None, logprobs=_logprobs_json(event.tokens))]
        delta = self._delta(index, event)
        return [self._chunk(index, delta, None)] if delta else []

    def usage_chunk(self) -> dict[str, Any]:
        return {**self._chunk_head(), "usage": usage_json(self.usage)}

    def add(self, index: int, event: ChatEvent) -> None:
        """Collect an event for `completion`."""
        if isinstance(event, Finish):
            self._finished[index] = event
            return
        if isinstance(event, Candidate):
            choice = self._candidate(event)
            choice["message"] = {"role": "assistant", "content": None, **_whole(_call_json(event.call, 0))}
            return
        if isinstance(event, TokenScores):
            known, new = self._logprobs[index], _logprobs_json(event.tokens)
            self._logprobs[index] = {**new, "content": known["content"] + new["content"]} if known else new
            return
        message = self._messages[index]
        for name, value in _whole(self._delta(index, event)).items():
            if name == "tool_calls":
                message.setdefault("tool_calls", []).extend(value)
            else:
                message[name] = (message.get(name) or "") + value

    def completion(self) -> dict[str, Any]:
        """The whole answer, after its last event."""
        choices = self._candidates or [
            {"index": i, "message": message, "finish_reason": self._finished[i].reason, "logprobs": self._logprobs[i]}
            for i, message in enumerate(self._messages)
        ]
        return {**self._head("chat.completion"), "choices": choices, "usage": usage_json(self.usage)}

    @property
    def usage(self) -> Usage:
        """The tokens of all answers that have finished; their prompt counts once."""
        first = self._finished.get(0)
        return Usage(
            prompt_tokens=first.usage.prompt_tokens if first else 0,
            cached_tokens=first.usage.cached_tokens if first else 0,
            completion_tokens=sum(finish.usage.completion_tokens for finish in self._finished.values()),
        )

    def _candidate(self, event: Candidate) -> dict[str, Any]:
        """The choice of a candidate, without its call; JSON keeps every bit of a score."""
        choice = {"index": len(self._candidates), "finish_reason": "tool_calls", "logprobs": None}
        self._candidates.append({**choice, "score": event.logprob, "proposed": event.proposed})
        return self._candidates[-1]

    def _delta(self, index: int, event: ChatEvent) -> dict[str, Any]:
        if isinstance(event, BadCall):
            # A call that does not parse is text to the client, never a call; of a call cut off the finish reason tells.
            return {} if event.cut_off else {"content": event.text}
        if isinstance(event, TextDelta):
            return {"content": event.text}
        if isinstance(event, ThinkDelta):
            return {"reasoning_content": event.text}
        if isinstance(event, Call):
            self._num_calls[index] += 1
            return _call_json(event, self._num_calls[index] - 1)
        return {}

    def _chunk(
        self, index: int, delta: dict[str, Any], finish_reason: str | None, *, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": finish_reason, "logprobs": logprobs}
        return {**self._chunk_head(), "choices": [choice]}

    def _chunk_head(self) -> dict[str, Any]:
        return {**self._head("chat.completion.chunk"), "choices": []}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self._id, "object": kind, "created": self._created, "model": self._model}


def _call_json(call: Call, index: int) -> dict[str, Any]:
    """The delta that holds one complete call."""
    function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
    return {"tool_calls": [{"index": index, "id": call.id, "type": "function", "function": function}]}


def _whole(delta: dict[str, Any]) -> dict[str, Any]:
    """A delta as part of a message, where calls have no index."""
    if "tool_calls" not in delta:
        return delta
    return {"tool_calls": [{k: v for k, v in call.items() if k != "index"} for call in delta["tool_calls"]]}


def _logprobs_json(tokens: Sequence[TokenScore]) -> dict[str, Any]:
    content = [
        {
            **_token_json(one.token, one.logprob),
            "top_logprobs": [_token_json(other, value) for other, value in one.top],
        }
        for one in tokens
    ]
    return {"content": content, "refusal": None}


def _token_json(token: bytes, logprob: float) -> dict[str, Any]:
    """`bytes` are exact where a token is only a part of a character."""
    return {"token": token.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(token)}


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
