"""OpenAI's chat completion format: requests to ChatOptions, events to chunks and to one whole completion.

Beyond OpenAI's fields (EXTENSIONS, which /v1/models names): `candidates` asks for that many alternative calls of the
tool that `tool_choice` names, `fixed_arguments` limits its parameters to lists of values, `proposed` holds arguments of
further calls to be scored. Each candidate is a choice of its own, best first, with its log-probability as `score` and
`proposed` true for the client's own. `return_progress` adds chunks with llama.cpp's `prompt_progress` to a stream.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from m3_runtime.chat.events import Candidate, ChatEvent, Finish, PrefillProgress, Usage
from m3_runtime.chat.options import ChatOptions
from m3_runtime.chat.parser import BadCall, Call, TextDelta, ThinkDelta

EXTENSIONS = ("candidates", "fixed_arguments", "proposed", "return_progress")


class BadRequest(ValueError):
    """The request cannot be served; `param` names the field."""

    def __init__(self, message: str, param: str | None = None, *, code: str | None = None, status: int = 400):
        super().__init__(message)
        self.param, self.code, self.status = param, code, status


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatRequest:
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    options: ChatOptions
    stream: bool
    include_usage: bool
    return_progress: bool


def error_json(message: str, *, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    """OpenAI's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def parse_request(body: Any, model_name: str) -> ChatRequest:
    """The request in our terms. Raises BadRequest that names the field."""
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object")
    model = _typed(body, "model", str, "")
    if model and model != model_name:
        raise BadRequest(
            f"the model {model!r} is not served here; use {model_name!r}", "model", code="model_not_found", status=404
        )
    for name in ("stop", "logprobs", "response_format", "audio", "prediction"):
        if body.get(name) not in (None, False, [], {"type": "text"}):
            raise BadRequest(f"{name} is not supported", name)
    if body.get("n") not in (None, 1):
        raise BadRequest("n is not supported; send one request for each answer, or ask for candidates", "n")
    messages = _objects(body, "messages")
    if not messages:
        raise BadRequest("messages is missing or empty; give at least one message", "messages")
    tools = _objects(body, "tools")
    for index, tool in enumerate(tools):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict) or not function.get("name"):
            raise BadRequest(f"tools[{index}] must be {{type: function, function: {{name, …}}}}", "tools")
    try:
        options = ChatOptions(**_options(body))
    except (TypeError, ValueError) as error:
        raise BadRequest(str(error), next((n for n in _OPTION_NAMES if n in str(error)), None)) from error
    named = [tool["function"]["name"] for tool in tools]
    if options.tool_choice not in ("", "none", "required", *named):
        raise BadRequest(f"tool_choice names {options.tool_choice!r}, which is not among tools", "tool_choice")
    if options.tool_choice == "required" and not tools:
        raise BadRequest("tool_choice is required, and there are no tools", "tool_choice")
    stream_options = _typed(body, "stream_options", dict, {})
    return ChatRequest(
        messages=messages,
        tools=tools,
        options=options,
        stream=_typed(body, "stream", bool, False),
        include_usage=bool(stream_options.get("include_usage")),
        return_progress=_typed(body, "return_progress", bool, False),
    )


_OPTION_NAMES = (
    *("proposed", "fixed_arguments", "candidates"),  # their errors name tool_choice as well
    *("temperature", "top_p", "top_k", "max_tokens", "seed", "thinking", "tool_choice"),
)


def _options(body: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for name, kind in (("temperature", (int, float)), ("top_p", (int, float)), ("top_k", int), ("seed", int)):
        value = _typed(body, name, kind, None)
        if value is not None:
            options[name] = value
    limit = _typed(body, "max_completion_tokens", int, None) or _typed(body, "max_tokens", int, None)
    if limit is not None:
        options["max_tokens"] = limit
    candidates = _typed(body, "candidates", int, None)
    if candidates is not None:
        options["candidates"] = candidates
    options["fixed_arguments"] = _fixed_arguments(body)
    options["proposed"] = _objects(body, "proposed")
    thinking = body.get("thinking")
    thinking = thinking.get("type") if isinstance(thinking, dict) else thinking
    thinking = thinking or _typed(body, "chat_template_kwargs", dict, {}).get("thinking_mode")
    if thinking is not None:
        options["thinking"] = thinking
    choice = body.get("tool_choice")
    if isinstance(choice, dict):
        function = choice.get("function")
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise BadRequest("tool_choice must be {type: function, function: {name}}", "tool_choice")
        options["tool_choice"] = function["name"]
    elif choice in ("none", "required"):
        options["tool_choice"] = choice
    elif choice not in (None, "auto"):
        raise BadRequest(f"tool_choice is {choice!r}; use none, auto, required or a function", "tool_choice")
    return options


def _fixed_arguments(body: Mapping[str, Any]) -> dict[str, list[str]]:
    fixed: dict[str, Any] = _typed(body, "fixed_arguments", dict, {})
    for values in fixed.values():
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise BadRequest("fixed_arguments must be {parameter: [text, …]}", "fixed_arguments")
    return fixed


def _typed(body: Mapping[str, Any], name: str, kind: Any, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise BadRequest(f"{name} has the wrong type: {json.dumps(value)[:80]}", name)
    return value


def _objects(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    value = _typed(body, name, list, [])
    if not all(isinstance(item, dict) for item in value):
        raise BadRequest(f"{name} must be a list of objects", name)
    return list(value)


class CompletionWriter:
    """Writes one answer, as chunks or whole; the candidates of an answer are its choices."""

    def __init__(self, completion_id: str, created: int, model: str):
        self._id, self._created, self._model = completion_id, created, model
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._candidates: list[dict[str, Any]] = []
        self._num_calls = 0
        self._finish: Finish | None = None

    def chunks(self, event: ChatEvent, *, include_usage: bool, return_progress: bool) -> list[dict[str, Any]]:
        """The stream's chunks for one event."""
        if isinstance(event, Finish):
            told = self._candidates and event.reason == "tool_calls"  # each candidate has said so itself
            last = [] if told else [self._chunk({}, event.reason)]
            return [*last, {**self._chunk_head(), "usage": usage_json(event.usage)}] if include_usage else last
        if isinstance(event, PrefillProgress):
            progress = {"total": event.total_tokens, "processed": event.done_tokens}
            return [{**self._chunk_head(), "prompt_progress": progress}] if return_progress else []
        if isinstance(event, Candidate):
            choice = self._candidate(event)
            return [{**self._chunk_head(), "choices": [{**choice, "delta": _call_json(event.call, 0)}]}]
        delta = self._delta(event)
        return [self._chunk(delta, None)] if delta else []

    def first_chunk(self) -> dict[str, Any]:
        return self._chunk({"role": "assistant", "content": ""}, None)

    def add(self, event: ChatEvent) -> None:
        """Collect an event for `completion`."""
        if isinstance(event, Finish):
            self._finish = event
            return
        if isinstance(event, Candidate):
            choice = self._candidate(event)
            choice["message"] = {"role": "assistant", "content": None, **_whole(_call_json(event.call, 0))}
            return
        for name, value in _whole(self._delta(event)).items():
            if name == "tool_calls":
                self._message.setdefault("tool_calls", []).extend(value)
            else:
                self._message[name] = (self._message.get(name) or "") + value

    def completion(self) -> dict[str, Any]:
        assert self._finish is not None, "the answer has not ended"
        only = {"index": 0, "message": self._message, "finish_reason": self._finish.reason, "logprobs": None}
        choices = self._candidates or [only]
        return {**self._head("chat.completion"), "choices": choices, "usage": usage_json(self._finish.usage)}

    def _candidate(self, event: Candidate) -> dict[str, Any]:
        """The choice of a candidate, without its call; JSON keeps every bit of a score."""
        choice = {"index": len(self._candidates), "finish_reason": "tool_calls", "logprobs": None}
        self._candidates.append({**choice, "score": event.logprob, "proposed": event.proposed})
        return self._candidates[-1]

    def _delta(self, event: ChatEvent) -> dict[str, Any]:
        if isinstance(event, BadCall):
            # A call that does not parse is text to the client, never a call; of a call cut off the finish reason tells.
            return {} if event.cut_off else {"content": event.text}
        if isinstance(event, TextDelta):
            return {"content": event.text}
        if isinstance(event, ThinkDelta):
            return {"reasoning_content": event.text}
        if isinstance(event, Call):
            self._num_calls += 1
            return _call_json(event, self._num_calls - 1)
        return {}

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason, "logprobs": None}
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


def usage_json(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
    }
