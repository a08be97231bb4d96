"""Messages as the dictionaries of the OpenAI chat API, which M3's chat template reads too."""

from __future__ import annotations

import base64
import json
from typing import Any, Literal

from m3agent.messages import ImagePart, Message

Dialect = Literal["http", "template"]
"""http: arguments as a JSON string, pictures as data URLs. template: arguments as a mapping, pictures as bytes."""


def message_to_chat(message: Message, dialect: Dialect) -> dict[str, Any]:
    """One message for the wire. Reasoning of past turns is kept: M3 renders it for every turn."""
    chat: dict[str, Any] = {"role": message.role, "content": _content(message, dialect)}
    if message.reasoning:
        chat["reasoning_content"] = message.reasoning
    if message.tool_calls:
        chat["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {
                    "name": call.name,
                    "arguments": json.dumps(call.arguments) if dialect == "http" else dict(call.arguments),
                },
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id is not None:
        chat["tool_call_id"] = message.tool_call_id
    return chat


def _content(message: Message, dialect: Dialect) -> str | list[dict[str, Any]]:
    images = [part for part in message.parts if isinstance(part, ImagePart)]
    if not images:
        return message.text
    parts: list[dict[str, Any]] = []
    for image in images:
        if dialect == "http":
            url = f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"
            parts.append({"type": "image_url", "image_url": {"url": url}})
        else:
            parts.append({"type": "image", "image": image.data})
    return [*parts, {"type": "text", "text": message.text}]
