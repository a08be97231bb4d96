"""What nano reads in the pictures of an issue becomes a part of the issue's text.

Nano was taught to answer one question about one picture, and not to repair by looking at one. What it read comes from a
stranger's picture: it is cleaned and bounded like the rest of the issue, and shown to the person.
"""

from __future__ import annotations

import dataclasses

from m3agent.fix.hidden import visible_text
from m3agent.fix.issue import Issue
from m3agent.llm.protocol import LanguageModel, ModelInfo, Options, TextDelta
from m3agent.messages import ImagePart, user

MAX_TOKENS = 120
MAX_CHARS = 400


def reads_first(info: ModelInfo) -> bool:
    """Whether pictures are read before the repair, and kept from it."""
    return info.is_nano and info.reads_images


async def read_picture(model: LanguageModel, image: ImagePart) -> str:
    """The error of the picture and its place, at most two lines; empty if nothing was read.

    Errors: only ModelError and its children.
    """
    from m3_model.reading import ERROR

    options = Options(max_tokens=MAX_TOKENS, temperature=0, thinking="disabled")
    answer = ""
    async for event in model.stream([user(ERROR, image)], (), options):
        if isinstance(event, TextDelta):
            answer += event.text
    visible, _ = visible_text(answer)
    lines = [" ".join(line.split()) for line in visible[:MAX_CHARS].splitlines()]
    return "\n".join([line for line in lines if line][:2])


def with_read(issue: Issue, text: str) -> Issue:
    """The issue with what was read below its text."""
    return dataclasses.replace(issue, body="\n\n".join(filter(None, [issue.body, text])))
