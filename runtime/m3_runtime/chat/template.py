"""A checkpoint's own chat template, rendered in a sandbox.

The template is data of the checkpoint; this file only gives it the environment that it was written for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jinja2

from m3_runtime.chat.media import read_media
from m3_runtime.chat.sandbox import BoundedEnvironment
from m3_runtime.chat.syntax import THINK_END, THINK_START

Thinking = Literal["enabled", "disabled", "adaptive"]
ChatMessage = Mapping[str, Any]


class ChatTemplate:
    """A compiled template, whose renderings take `limit_s` seconds at most. ValueError if it is not a template."""

    def __init__(self, source: str, *, limit_s: float = 20.0):
        self._environment = BoundedEnvironment(limit_s=limit_s)
        self._environment.filters["tojson"] = _to_json
        self._environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = self._environment.compile_bounded(source)
        except jinja2.TemplateSyntaxError as error:
            raise ValueError(f"the chat template has an error in line {error.lineno}: {error.message}") from error
        except (jinja2.TemplateError, RecursionError, SyntaxError) as error:
            raise ValueError(f"the chat template cannot be used: {error}") from error

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate:
        """The template of a checkpoint folder. ValueError if it has none."""
        path = folder / "chat_template.jinja"
        if not path.is_file():
            raise ValueError(f"{folder} has no chat_template.jinja; download the checkpoint again")
        return cls(path.read_text(encoding="utf-8"))

    def render(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        thinking: str | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The conversation as text; `thinking` None leaves the mode undefined, which M3's template reads as adaptive.

        ValueError with the template's own words if it refuses the messages.
        """
        variables: dict[str, Any] = {"messages": messages, "add_generation_prompt": add_generation_prompt}
        if tools:
            variables["tools"] = tools
        if thinking is not None:
            variables["thinking_mode"] = thinking
        try:
            return self._environment.render_bounded(self._template, variables)
        except Exception as error:  # the edge to a program that is not ours, whose mistakes raise anything
            raise ValueError(f"the chat template refuses these messages: {error}") from error


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, sort_keys: bool = False) -> str:
    """JSON without HTML escapes, unlike Jinja's own filter: the text goes to a model."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def normalise(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """OpenAI-style messages in the form that M3's template reads.

    Call arguments become mappings; images and videos become {type, media} (m3_runtime.chat.media); leading system
    messages become one, since the template drops a second one silently; reasoning inside an assistant's content is
    moved to `reasoning_content` by the template's own rule. ValueError names the message that is wrong.
    """
    result: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ("root", "system", "developer", "user", "assistant", "tool"):
            raise ValueError(f"messages[{index}].role is {role!r}; use system, user, assistant or tool")
        content = _content(message.get("content"), f"messages[{index}].content")
        if role not in ("user", "tool") and not isinstance(content, str):
            raise ValueError(f"messages[{index}] is a {role} message with an image or video; put it in a user message")
        entry: dict[str, Any] = {"role": role, "content": content}
        if role in ("system", "developer"):
            if result and result[-1]["role"] in ("system", "developer"):
                result[-1]["content"] = f"{result[-1]['content']}\n\n{content}"
                continue
            if result and result[-1]["role"] != "root":
                raise ValueError(f"messages[{index}] is a system message after the start; put it first")
        if role == "root" and result:
            raise ValueError(f"messages[{index}] has the role root, which is only allowed first")
        if role == "assistant":
            _assistant(entry, message, f"messages[{index}]")
        result.append(entry)
    return result


def _assistant(entry: dict[str, Any], message: ChatMessage, where: str) -> None:
    reasoning = message.get("reasoning_content", message.get("reasoning"))
    text = entry["content"]
    if isinstance(reasoning, str):
        entry["reasoning_content"] = reasoning
    elif THINK_END in text:
        entry["reasoning_content"] = text.split(THINK_END)[0].strip("\n").split(THINK_START)[-1].strip("\n")
        text = text.split(THINK_END)[-1].strip("\n")
    else:
        entry["reasoning_content"] = ""
    entry["content"] = text
    given = message.get("tool_calls") or ()
    if not isinstance(given, Sequence):
        raise ValueError(f"{where}.tool_calls must be a list")
    calls = [_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(given)]
    if calls:
        entry["tool_calls"] = calls


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"{where} has no function name")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{where}.function.arguments is not JSON: {error}") from error
    if not isinstance(arguments, Mapping):
        raise ValueError(f"{where}.function.arguments must be a JSON object")
    return {"type": "function", "function": {"name": function["name"], "arguments": dict(arguments)}}


def _content(content: Any, where: str) -> Any:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, Sequence):
        raise ValueError(f"{where} must be a string or a list of parts")
    parts: list[Any] = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("text", "input_text") and isinstance(part.get("text"), str):
            parts.append({"type": "text", "text": part["text"]})
        elif kind is not None and (media := read_media(part, f"{where}[{index}]")) is not None:
            parts.append({"type": media.kind, "media": media})
        else:
            raise ValueError(f"{where}[{index}] has the type {kind!r}; use text, image_url or video_url")
    return parts if any("media" in part for part in parts) else "".join(part["text"] for part in parts)
