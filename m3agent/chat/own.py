"""What a person does beside the model: runs a tool or a command, gives a picture. The model reads what came of it."""

from __future__ import annotations

import dataclasses
import time
import uuid
from typing import TYPE_CHECKING, Any

from m3_tools.base import Tool, ToolResult, call_tool
from m3_tools.shell import MAX_TIMEOUT_S, ShellTool
from m3agent.events import ToolEnded, ToolOutput, ToolStarted
from m3agent.loop import WHILE_IT_RAN
from m3agent.messages import user
from m3agent.session.export import fenced

if TYPE_CHECKING:
    from m3agent.chat.talk import Chat


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
