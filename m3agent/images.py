"""Pictures that a person gives: read, told in a line, and handed to the model as parts of a message."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from m3agent.errors import M3Error
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


def image_part(picture: Picture) -> ImagePart:
    return ImagePart(media_type=picture.media_type, data=picture.data)


def parts_for(pictures: Sequence[Picture], info: ModelInfo) -> tuple[ImagePart, ...]:
    """What goes to the model: nothing to one that reads text only."""
    return tuple(image_part(picture) for picture in pictures) if info.reads_images else ()


def told(pictures: Sequence[Picture], info: ModelInfo, rule: ImageRule) -> Iterator[str]:
    """One line for each picture: what it is, what it costs and by which rule; or that nobody looks at it."""
    for picture in pictures:
        facts = [f"{picture.name}: {picture.width} × {picture.height}"]
        if info.reads_images:
            facts.append(f"about {num_tokens(picture, rule):,} tokens ({RULE_NAMES[rule]})")
        else:
            facts.append(f"not looked at, {info.name} reads text only")
        yield ", ".join((*facts, *picture.notes))


def num_tokens(picture: Picture, rule: ImageRule) -> int:
    """Tokens of the picture in M3. A server may resize by a rule of its own."""
    height, width = resize_rule(rule)(picture.height, picture.width, TOKEN_SIZE)
    return (height // TOKEN_SIZE) * (width // TOKEN_SIZE)


def resize_rule(rule: ImageRule) -> ResizeRule:
    from m3_model.vision.resize import AreaRule, LongSideRule

    return AreaRule() if rule == "area" else LongSideRule()


def without_images(message: Message) -> Message:
    """The message for a model that reads text only: a word stands where each picture was."""
    if not any(isinstance(part, ImagePart) for part in message.parts):
        return message
    parts = (TextPart(text=f"{LEFT_OUT}\n") if isinstance(part, ImagePart) else part for part in message.parts)
    return Message(role=message.role, parts=tuple(parts), tool_call_id=message.tool_call_id, is_error=message.is_error)
