"""Requests of OpenAI's chat completions in our terms.

Beyond OpenAI's fields (EXTENSIONS, which /v1/models names): `candidates` asks for that many alternative calls of the
tool that `tool_choice` names, `fixed_arguments` limits its parameters to lists of values, `proposed` holds arguments of
further calls to be scored, `return_progress` adds chunks with llama.cpp's `prompt_progress` to a stream. `thinking` and
`chat_template_kwargs.thinking_mode` choose M3's mode, and `top_k` means what it does elsewhere.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from m3_runtime.chat.options import ChatOptions
from m3_runtime.server.errors import RequestError

EXTENSIONS = ("candidates", "fixed_arguments", "proposed", "return_progress")
MAX_ANSWERS = 128

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "functions": ([],),
    "function_call": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
}
"""OpenAI's fields that are not served, and their values that ask for nothing. A request that wants more is refused."""


_EXPECTED = {
    "response_format": "use {type: text}, {type: json_object} or {type: json_schema, json_schema: {schema: …}}",
    "stop": "use a text or a list of texts",
    "thinking": "use enabled, disabled or adaptive",
    "tool_choice": "use none, auto, required or {type: function, function: {name: …}}",
}
"""What is told of a field with several forms."""


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Function(_Part):
    name: str = Field(pattern=r"^[A-Za-z0-9_.:/-]{1,128}$")


class _Tool(_Part):
    type: Literal["function"]
    function: _Function


class _StreamOptions(_Part):
    include_usage: bool = False


class _Thinking(_Part):
    type: str


class _TemplateArguments(_Part):
    thinking_mode: str | None = None


class _Schema(_Part):
    name: str = ""
    json_schema: dict[str, Any] = Field(alias="schema")


class _ResponseFormat(_Part):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: _Schema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> _ResponseFormat:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError("json_schema goes with the type json_schema")
        return self

    @property
    def reply_schema(self) -> dict[str, Any] | None:
        if self.json_schema is not None:
            return self.json_schema.json_schema
        return {"type": "object"} if self.type == "json_object" else None


class _Body(_Part):
    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | _Tool | None = None
    parallel_tool_calls: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    n: int | None = Field(None, ge=1, le=MAX_ANSWERS)
    logprobs: bool | None = None
    top_logprobs: int | None = None
    stop: str | list[str] | None = None
    response_format: _ResponseFormat | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    thinking: str | _Thinking | None = None
    chat_template_kwargs: _TemplateArguments | None = None
    candidates: int | None = None
    fixed_arguments: dict[str, list[str]] | None = None
    proposed: list[dict[str, Any]] | None = None
    return_progress: bool | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChatRequest:
    """One request, checked. Its answers differ in their seeds: the given one, that plus 1, and so on."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    options: ChatOptions
    num_answers: int
    stream: bool
    include_usage: bool
    return_progress: bool


def parse_request(raw: bytes, model_name: str) -> ChatRequest:
    """The request in a body. Raises RequestError that names the field."""
    try:
        content = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise RequestError("the body must be a JSON object")
    try:
        body = _Body.model_validate(content)
    except ValidationError as error:
        raise _wrong_field(error) from error
    if body.model and body.model != model_name:
        raise RequestError(
            f"the model {body.model!r} is not served here; use {model_name!r}",
            "model",
            code="model_not_found",
            status=404,
        )
    for name, neutral in _NEUTRAL.items():
        if content.get(name) is not None and content[name] not in neutral:
            raise RequestError(f"{name} is not supported here; leave it out", name)
    if (body.n or 1) > 1 and (body.candidates or 1) > 1:
        raise RequestError("n does not go together with candidates, which are the answers already", "n")
    if body.top_logprobs and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs to be true", "top_logprobs")
    return ChatRequest(
        messages=body.messages,
        tools=content.get("tools") or [],
        options=_options(body),
        num_answers=body.n or 1,
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        return_progress=bool(body.return_progress),
    )


def _options(body: _Body) -> ChatOptions:
    names = [tool.function.name for tool in body.tools or ()]
    if len(set(names)) < len(names):
        raise RequestError("two of the tools have the same name", "tools")
    choice = body.tool_choice
    if isinstance(choice, _Tool):
        if choice.function.name not in names:
            raise RequestError(f"tool_choice names {choice.function.name!r}, which is not among tools", "tool_choice")
        choice_name = choice.function.name
    else:
        choice_name = "" if choice in (None, "auto") else str(choice)
    if choice_name == "required" and not names:
        raise RequestError("tool_choice is required, and there are no tools", "tool_choice")
    thinking = body.thinking.type if isinstance(body.thinking, _Thinking) else body.thinking
    if thinking is None and body.chat_template_kwargs is not None:
        thinking = body.chat_template_kwargs.thinking_mode
    chosen: dict[str, Any] = {
        **{name: getattr(body, name) for name in ("temperature", "top_p", "top_k", "seed", "candidates", "proposed")},
        "max_tokens": body.max_completion_tokens or body.max_tokens,
        "thinking": thinking,
        "tool_choice": choice_name,
        "fixed_arguments": body.fixed_arguments,
        "stop": [body.stop] if isinstance(body.stop, str) else body.stop,
        "parallel_calls": body.parallel_tool_calls,
        "top_logprobs": (body.top_logprobs or 0) if body.logprobs else None,
        "reply_schema": body.response_format.reply_schema if body.response_format is not None else None,
    }
    try:
        return ChatOptions(**{name: value for name, value in chosen.items() if value is not None})
    except ValueError as error:
        # The text begins with the option's name, which is the field's in all but one case.
        field = re.match(r"\w*", str(error))
        raise RequestError(str(error), field.group() if field else None) from error


def _wrong_field(error: ValidationError) -> RequestError:
    """The first thing that is wrong."""
    problem = error.errors(include_url=False, include_context=False)[0]
    field = str(problem["loc"][0])
    if field in _EXPECTED:
        return RequestError(f"{field} has no form that is known here: {_EXPECTED[field]}", field)
    where = field + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in problem["loc"][1:])
    if problem["type"] == "missing":
        return RequestError(f"{where} is missing", field)
    return RequestError(f"{where} is {json.dumps(problem['input'], default=str)[:80]}: {problem['msg']}", field)
