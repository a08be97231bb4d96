"""Pictures that a person gives: read, told in a line, and handed to the model as parts of a message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from m3agent.errors import M3Error
from m3agent.events import Notice
from m3agent.llm.protocol import ModelInfo
from m3agent.messages import ImagePart, Message, TextPart
from m3agent.settings import ImageRule

if TYPE_CHECKING:
    from m3_model.vision.resize import ResizeRule
    from m3_tools.screenshot.picture import Picture

TOKEN_SIZE = 28
"""Pixels on each side of what is one token of M3."""
LEFT_OUT = "(a picture stood here; this model reads text only)"
RULE_NAMES: dict[ImageRule, str] = {"long_side": "long side up to 2016", "area": "area up to 672 × 672"}


def read_images(paths: Sequence[Path]) -> tuple[Picture, ...]:
    """The pictures in the files. Errors: M3Error with one line for the first that cannot be read."""
    from m3_tools.base import ToolError
    from m3_tools.screenshot.decode import read_picture

    try:
        return tuple(read_picture(path) for path in paths)
    except ToolError as error:
        raise M3Error(str(error).rstrip(".")) from error


def read_clipboard_image(environment: Mapping[str, str]) -> Picture:
    """The picture on the clipboard. Errors: M3Error with one line."""
    from m3_tools.base import ToolError
    from m3_tools.screenshot.clipboard import read_clipboard

    try:
        return read_clipboard(environment)
    except ToolError as error:
        raise M3Error(str(error).rstrip(".")) from error


def image_part(picture: Picture) -> ImagePart:
    return ImagePart(media_type=picture.media_type, data=picture.data)


def parts_for(pictures: Sequence[Picture], info: ModelInfo) -> tuple[ImagePart, ...]:
    """What goes to the model: nothing to one that reads text only."""
    return tuple(image_part(picture) for picture in pictures) if info.reads_images else ()


def told(pictures: Sequence[Picture], info: ModelInfo, rule: ImageRule, folder: Path) -> Iterator[Notice]:
    """One line for each picture: what it is, what it costs and what of it is read; or that nobody looks at it.

    Each is kept in the session's folder, from where a view shows it.
    """
    from m3_tools.screenshot.picture import keep

    for picture in pictures:
        facts = [f"{picture.name}: {picture.width} × {picture.height}"]
        if info.reads_images:
            width, height = read_size(picture, rule)
            tokens = num_tokens(picture, rule)
            facts.append(f"about {tokens:,} tokens (read at {width} × {height}, {RULE_NAMES[rule]})")
        else:
            facts.append(f"not looked at, {info.name} reads text only")
        yield Notice(
            text=", ".join((*facts, *picture.notes)),
            level="info" if info.reads_images else "warning",
            pictures=(keep(picture, folder, "image"),),
        )


def num_tokens(picture: Picture, rule: ImageRule) -> int:
    """Tokens of the picture in M3. A server may resize by a rule of its own."""
    width, height = read_size(picture, rule)
    return (height // TOKEN_SIZE) * (width // TOKEN_SIZE)


def read_size(picture: Picture, rule: ImageRule) -> tuple[int, int]:
    """Width and height in which M3 reads the picture."""
    height, width = resize_rule(rule)(picture.height, picture.width, TOKEN_SIZE)
    return width, height


def resize_rule(rule: ImageRule) -> ResizeRule:
    from m3_model.vision.resize import AreaRule, LongSideRule

    return AreaRule() if rule == "area" else LongSideRule()


def without_images(message: Message) -> Message:
    """The message for a model that reads text only: a word stands where each picture was."""
    if not any(isinstance(part, ImagePart) for part in message.parts):
        return message
    parts = (TextPart(text=f"{LEFT_OUT}\n") if isinstance(part, ImagePart) else part for part in message.parts)
    return Message(role=message.role, parts=tuple(parts), tool_call_id=message.tool_call_id, is_error=message.is_error)
