"""The conversation as values: a message is a role and a tuple of parts.

Identity, time and storage are not part of a message; the session keeps those.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TextPart:
    text: str
    kind: Literal["text"] = "text"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ThinkPart:
    """Reasoning of a past turn. M3's template renders the reasoning of every turn, so it stays in the history."""

    text: str
    kind: Literal["think"] = "think"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ImagePart:
    """An encoded picture (PNG or JPEG bytes) that was decoded and re-encoded before it came here."""

    media_type: str
    data: bytes
    kind: Literal["image"] = "image"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolCall:
    """A complete call. `arguments` is decoded JSON; a call that was cut off never becomes a ToolCall."""

    id: str
    name: str
    arguments: Mapping[str, Any]
    kind: Literal["tool_call"] = "tool_call"


Part = TextPart | ThinkPart | ImagePart | ToolCall


@dataclasses.dataclass(frozen=True, kw_only=True)
class Message:
    """One turn. `tool_call_id` and `is_error` belong to role tool: which call this answers, and whether it failed."""

    role: Role
    parts: tuple[Part, ...]
    tool_call_id: str | None = None
    is_error: bool = False

    @property
    def text(self) -> str:
        return "".join(p.text for p in self.parts if isinstance(p, TextPart))

    @property
    def reasoning(self) -> str:
        return "".join(p.text for p in self.parts if isinstance(p, ThinkPart))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(p for p in self.parts if isinstance(p, ToolCall))


def system(text: str) -> Message:
    return Message(role="system", parts=(TextPart(text=text),))


def user(text: str, *images: ImagePart) -> Message:
    return Message(role="user", parts=(*images, TextPart(text=text)))


def assistant(text: str = "", *, reasoning: str = "", calls: tuple[ToolCall, ...] = ()) -> Message:
    parts: list[Part] = []
    if reasoning:
        parts.append(ThinkPart(text=reasoning))
    if text:
        parts.append(TextPart(text=text))
    return Message(role="assistant", parts=(*parts, *calls))


def tool_result(call_id: str, text: str, *images: ImagePart, is_error: bool = False) -> Message:
    return Message(role="tool", parts=(*images, TextPart(text=text)), tool_call_id=call_id, is_error=is_error)


_PART_TYPES: dict[str, type[Any]] = {"text": TextPart, "think": ThinkPart, "image": ImagePart, "tool_call": ToolCall}


def message_to_json(message: Message) -> dict[str, Any]:
    """The message as plain JSON values; picture bytes become base64."""
    parts: list[dict[str, Any]] = []
    for part in message.parts:
        value = dataclasses.asdict(part)
        if isinstance(part, ImagePart):
            value["data"] = base64.b64encode(part.data).decode()
        parts.append(value)
    result: dict[str, Any] = {"role": message.role, "parts": parts}
    if message.tool_call_id is not None:
        result["tool_call_id"] = message.tool_call_id
    if message.is_error:
        result["is_error"] = True
    return result


def message_from_json(value: Mapping[str, Any]) -> Message:
    """The message that `message_to_json` wrote; raises ValueError or KeyError for anything else."""
    parts: list[Part] = []
    for item in value["parts"]:
        fields = dict(item)
        if fields["kind"] not in _PART_TYPES:
            raise ValueError(f"unknown message part {fields['kind']!r}")
        if fields["kind"] == "image":
            fields["data"] = base64.b64decode(fields["data"])
        parts.append(_PART_TYPES[fields["kind"]](**fields))
    return Message(
        role=value["role"],
        parts=tuple(parts),
        tool_call_id=value.get("tool_call_id"),
        is_error=value.get("is_error", False),
    )
