"""Commands that show or set something and touch neither files nor the conversation."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from m3_tools.base import call_tool
from m3_tools.todo import TodoTool
from m3agent.errors import M3Error
from m3agent.events import ToolEnded
from m3agent.llm.factory import open_model
from m3agent.llm.protocol import ModelError
from m3agent.session.store import SessionStore
from m3agent.settings import load_settings
from m3agent.ui.clean import one_line
from m3agent.ui.themes import THEMES

if TYPE_CHECKING:
    from m3agent.chat.talk import Chat

MAX_SESSIONS = 10


async def mode(chat: Chat, rest: str) -> None:
    from m3agent.chat.talk import MODES

    if rest in MODES:
        chat.mode = rest
        chat.notice(f"the mode is now {rest}")
    else:
        chat.notice(f"the mode is {chat.mode}; the modes are {', '.join(MODES)}")


async def model(chat: Chat, rest: str) -> None:
    if not rest:
        info = chat.model.info
        chat.notice(f"{info.name} answers; its window holds {info.context_tokens:,} tokens")
        return
    try:
        settings = load_settings(
            repo=chat.repo,
            model=rest,
            device=chat.settings.device,
            sandbox=chat.settings.sandbox,
            network=chat.settings.network,
        )
        opened = await open_model(settings)
    except (M3Error, ModelError) as error:
        chat.notice(f"{error}; {chat.model.info.name} still answers", "error")
        return
    await chat.model.aclose()
    chat.settings, chat.model = settings, opened
    where = f", {opened.info.note}" if opened.info.note else ""
    chat.notice(f"{opened.info.name} answers from now on{where}")


async def context(chat: Chat, rest: str) -> None:
    meter, window = chat.meter, chat.model.info.context_tokens
    if not meter.turns:
        chat.notice(f"nothing was read yet; the window holds {window:,} tokens")
        return
    share = f" ({100 * meter.context_tokens / window:.1f} % of {window:,})" if window else ""
    chat.notice(f"the conversation takes {meter.context_tokens:,} tokens{share}")
    if meter.cached_share is not None:
        chat.notice(f"{int(100 * meter.cached_share)} % of the last prompt came from the cache")
    sizes: dict[str, int] = {}
    for message in chat.work.conversation.messages:
        sizes[message.role] = sizes.get(message.role, 0) + len(message.text) + len(message.reasoning)
    total = sum(sizes.values()) or 1
    parts = ", ".join(f"{role} {100 * size / total:.0f} %" for role, size in sizes.items())
    chat.notice(f"by characters: {parts}")


async def theme(chat: Chat, rest: str) -> None:
    if rest in THEMES:
        chat.face.use_theme(rest)
        chat.notice(f'the theme is now {rest}; theme = "{rest}" in the config file keeps it')
    else:
        chat.notice(f"the themes are {', '.join(THEMES)}; /theme NAME changes it")


async def stats(chat: Chat, rest: str) -> None:
    meter = chat.meter
    chat.notice(
        f"{meter.turns} turns in {meter.duration_s:.0f} s · {meter.read_tokens:,} tokens read, "
        f"{meter.cached_tokens:,} from the cache, {meter.written_tokens:,} written"
    )
    if meter.tokens_per_s:
        chat.notice(f"{meter.tokens_per_s:.1f} tokens/s in the last turn")


async def permissions(chat: Chat, rest: str) -> None:
    await mode(chat, "")
    for rule in chat.rules:
        here = "" if rule in chat.settings.rules else ", in this chat"
        chat.notice(f"your rule{here}: {rule}")
    if not chat.rules:
        chat.notice('you gave no rules; they stand in the config file, for instance allow = ["shell: git status"]')
    context = chat.work.context
    if context.sandbox is not None:
        network = "with" if chat.settings.network else "without"
        chat.notice(f"commands run in a sandbox, {network} network")
    else:
        chat.notice(context.unconfined or "commands run with all your rights (--no-sandbox)", "warning")


async def sessions(chat: Chat, rest: str) -> None:
    found = (
        summary
        for summary in SessionStore(chat.settings.sessions_dir).list()
        if summary.command == "chat" and summary.repo == str(chat.repo)
    )
    for summary in itertools.islice(found, MAX_SESSIONS):
        here = " (this one)" if summary.run_id == chat.out.run_id else ""
        chat.notice(f"{summary.run_id}{here}  {one_line(summary.task, 60)}")
    chat.notice("m3 chat --resume ID goes on with one")


async def leave(chat: Chat, rest: str) -> None:
    chat.leave()


async def todo(chat: Chat, rest: str) -> None:
    calls = (call for message in reversed(chat.work.conversation.messages) for call in message.tool_calls)
    last = next((call for call in calls if call.name == "todo"), None)
    result = await call_tool(TodoTool(), last.arguments, chat.work.context) if last else None
    if result is None or result.is_error:
        chat.notice("the model has made no list of steps")
        return
    chat.sink(
        ToolEnded(call_id="", name="todo", is_error=False, duration_s=0, text=result.text, display=result.display)
    )


async def mcp(chat: Chat, rest: str) -> None:
    if not chat.settings.servers:
        chat.notice("no MCP servers are set; [mcp.NAME] in the config file adds one")
    for server in chat.settings.servers:
        where = server.url or " ".join(server.command)
        names = [tool.name for tool in chat.work.tools if tool.name.startswith(f"{server.name}__")]
        tools = ", ".join(names) if names else "not connected, or without tools"
        chat.notice(f"{server.name}  {one_line(where, 60)}: {tools}")


async def doctor(chat: Chat, rest: str) -> None:
    from m3agent.commands.doctor import checks, sandboxes

    for good, name, detail in await asyncio.to_thread(lambda: list(checks(chat.settings))):
        chat.notice(f"{'ok' if good else 'MISSING'}  {name}  {detail}", "info" if good else "warning")
    for works, line in await asyncio.to_thread(lambda: list(sandboxes())):
        chat.notice(f"{'ok' if works else 'no'}  sandbox  {line}")
