"""What a person does beside the model: runs a tool or a command, gives a picture. The model reads what came of it."""

from __future__ import annotations

import dataclasses
import time
import uuid
from typing import TYPE_CHECKING, Any

from m3_tools.base import Tool, ToolResult, call_tool
from m3_tools.screenshot.dropped import dropped_path
from m3_tools.shell import MAX_TIMEOUT_S, ShellTool
from m3agent.events import ToolEnded, ToolOutput, ToolStarted
from m3agent.loop import WHILE_IT_RAN
from m3agent.messages import user
from m3agent.session.export import fenced

if TYPE_CHECKING:
    from m3agent.chat.talk import Chat

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".svg")
"""Names of files that are taken as pictures when they are dropped on the terminal."""
MAX_PATH_CHARACTERS = 4096


async def run_for_person(chat: Chat, tool: Tool[Any], arguments: dict[str, Any], what: str) -> None:
    """Run a tool for the person; no mode keeps it from running. The model reads `what` it was, and what it gave."""
    call_id = f"person-{uuid.uuid4().hex[:8]}"
    chat.begin_request()
    chat.sink(ToolStarted(call_id=call_id, name=tool.name, arguments=arguments))
    context = dataclasses.replace(
        chat.work.context,
        jobs=None,  # a person waits for what they typed
        on_output=lambda text: chat.sink(ToolOutput(call_id=call_id, text=text)),
    )
    start = time.monotonic()
    result = ToolResult(text=WHILE_IT_RAN, is_error=True)
    try:
        result = await call_tool(tool, arguments, context)
    finally:
        chat.sink(
            ToolEnded(
                call_id=call_id,
                name=tool.name,
                is_error=result.is_error,
                duration_s=time.monotonic() - start,
                text=result.text,
                display=result.display,
                rule="your own command",
            )
        )
        chat.work.conversation.add(user(f"{what}\nIt gave:\n{fenced(result.text)}"))


async def shell(chat: Chat, command: str) -> None:
    """Run a command that the person wrote behind a `!`."""
    if not command:
        chat.notice("write a command behind the !, for instance !git status", "warning")
        return
    what = f"I ran this command myself:\n{fenced(command, 'bash')}"
    await run_for_person(chat, ShellTool(), {"command": command, "timeout_s": MAX_TIMEOUT_S}, what)


def is_picture(text: str) -> bool:
    """Whether a pasted text is the path of a picture: one line, as terminals write it when a file is dropped."""
    if len(text) > MAX_PATH_CHARACTERS or "\n" in text.strip() or "\r" in text.strip():
        return False
    path = dropped_path(text)
    try:
        return path.is_absolute() and path.suffix.lower() in PICTURES and path.is_file()
    except (OSError, ValueError):  # too long, or a NUL
        return False
