"""Images and videos in the messages of a request, as bytes."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

Kind = Literal["image", "video"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Media:
    """An encoded image or video. Its text, and so the key of a conversation, holds the digest and not the bytes."""

    kind: Kind
    digest: str
    """SHA-256 of the bytes, in hexadecimal digits."""
    data: bytes = dataclasses.field(repr=False)
    where: str = dataclasses.field(repr=False)
    """Its place in the request, for messages of errors."""


def read_media(part: Mapping[str, Any], where: str) -> Media | None:
    """The image or video of a content part, or None if it is another part.

    OpenAI's {type: image_url, image_url: {url}} with a data: URL, the same with video, and in this process
    {type: image, image: bytes} and {type: video, video: bytes}. Errors: ValueError that names the part.
    """
    for kind in ("image", "video"):
        if part.get("type") == kind:
            data = part.get(kind)
            if not isinstance(data, bytes):
                raise ValueError(f"{where}.{kind} must be bytes; over HTTP, use the type {kind}_url")
        elif part.get("type") == f"{kind}_url":
            value = part.get(f"{kind}_url")
            data = _from_url(value.get("url") if isinstance(value, Mapping) else value, f"{where}.{kind}_url")
        else:
            continue
        return Media(kind=kind, digest=hashlib.sha256(data).hexdigest(), data=data, where=where)
    return None


def media_in(messages: Sequence[Mapping[str, Any]]) -> Iterator[Media]:
    """Those of normalised messages (m3_runtime.chat.template.normalise), in the order in which they are shown."""
    for message in messages:
        if not isinstance(message["content"], str):
            yield from (part["media"] for part in message["content"] if "media" in part)


def _from_url(url: Any, where: str) -> bytes:
    head, comma, body = url.partition(",") if isinstance(url, str) else ("", "", "")
    if not head.startswith("data:") or not comma:
        raise ValueError(f"{where} must be a data: URL; nothing is fetched from the network")
    if not head.endswith(";base64"):
        raise ValueError(f"{where} must be base64: data:image/png;base64,…")
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error as error:
        raise ValueError(f"{where} is not base64: {error}") from error
