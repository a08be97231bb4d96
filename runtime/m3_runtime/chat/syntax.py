"""The marks of M3's conversation format, each one token. The same text in ordinary tokens means nothing."""

from __future__ import annotations

NAMESPACE = "]<]minimax[>["
"""Stands before every tag of a tool call."""
THINK_START = "<mm:think>"
THINK_END = "</mm:think>"
END_OF_TURN = "[e~["
BEGIN_OF_DOCUMENT = "]~!b["
ROLE_START = "]~b]"
CALLS_START = "<tool_call>"
CALLS_END = "</tool_call>"
INVOKE_END = "</invoke>"


def invoke_start(tool_name: str) -> str:
    """The opening tag of a call, without its namespace mark."""
    return f'<invoke name="{tool_name}">'
