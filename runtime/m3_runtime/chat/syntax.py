"""The marks of M3's conversation format, each one token. The same text in ordinary tokens means nothing."""

from __future__ import annotations

NAMESPACE = "]<]minimax[>["
"""Stands before every tag of a tool call."""
THINK_START = "<mm:think>"
THINK_END = "</mm:think>"
END_OF_TURN = "[e~["
BEGIN_OF_DOCUMENT = "]~!b["
ROLE_START = "]~b]"
IMAGE = "]<]image[>["
VIDEO = "]<]video[>["
"""Each stands for an image or a video in the template's output, and for each of its parts in the prompt."""
IMAGE_START = "]<]start of image[>["
IMAGE_END = "]<]end of image[>["
"""Around an image, and around what belongs to one time of a video."""
CALLS_START = "<tool_call>"
CALLS_END = "</tool_call>"
INVOKE_END = "</invoke>"


def invoke_start(tool_name: str) -> str:
    """The opening tag of a call, without its namespace mark."""
    return f'<invoke name="{tool_name}">'
