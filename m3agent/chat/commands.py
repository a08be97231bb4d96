"""The lines with a slash."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from m3_tools.base import call_tool
from m3_tools.diff import DiffTool
from m3agent.errors import M3Error
from m3agent.events import ToolEnded
from m3agent.llm.factory import open_model
from m3agent.llm.protocol import ModelError
from m3agent.session.export import to_markdown
from m3agent.session.store import SessionStore
from m3agent.settings import load_settings
from m3agent.ui.clean import one_line

if TYPE_CHECKING:
    from m3agent.chat.talk import Chat

MAX_SESSIONS = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """`run` gets the chat and what stands behind the name. An instant command does not wait for a turn to end."""

    help: str
    run: Callable[[Chat, str], Awaitable[None]]
    instant: bool = False


async def run_command(chat: Chat, line: str) -> None:
    """Do what the line says; a wrong one is told, and errors end only the command."""
    name, _, rest = line.strip().partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        chat.notice(f"there is no command {name}; /help lists them", "warning")
        return
    try:
        await command.run(chat, rest.strip())
    except M3Error as error:
        chat.notice(str(error), "warning")


def is_instant(line: str) -> bool:
    command = COMMANDS.get(line.split()[0]) if line.startswith("/") else None
    return command is not None and command.instant


async def _help(chat: Chat, rest: str) -> None:
    from m3agent.ui.keys import KEYS

    for name, command in COMMANDS.items():
        chat.notice(f"{name}  {command.help}")
    for key, help_text in KEYS.items():
        chat.notice(f"{key}  {help_text}")


async def _mode(chat: Chat, rest: str) -> None:
    from m3agent.chat.talk import MODES

    if rest in MODES:
        chat.mode = rest
        chat.notice(f"the mode is now {rest}")
    else:
        chat.notice(f"the mode is {chat.mode}; the modes are {', '.join(MODES)}")


async def _model(chat: Chat, rest: str) -> None:
    if not rest:
        info = chat.model.info
        chat.notice(f"{info.name} answers; its window holds {info.context_tokens:,} tokens")
        return
    try:
        settings = load_settings(
            repo=chat.repo, model=rest, sandbox=chat.settings.sandbox, network=chat.settings.network
        )
        model = await open_model(settings)
    except (M3Error, ModelError) as error:
        chat.notice(f"{error}; {chat.model.info.name} still answers", "error")
        return
    await chat.model.aclose()
    chat.settings, chat.model = settings, model
    chat.notice(f"{model.info.name} answers from now on")


async def _context(chat: Chat, rest: str) -> None:
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


async def _stats(chat: Chat, rest: str) -> None:
    meter = chat.meter
    chat.notice(
        f"{meter.turns} turns in {meter.duration_s:.0f} s · {meter.read_tokens:,} tokens read, "
        f"{meter.cached_tokens:,} from the cache, {meter.written_tokens:,} written"
    )
    if meter.tokens_per_s:
        chat.notice(f"{meter.tokens_per_s:.1f} tokens/s in the last turn")


async def _permissions(chat: Chat, rest: str) -> None:
    await _mode(chat, "")
    for rule in chat.settings.rules:
        chat.notice(f"your rule: {rule}")
    if not chat.settings.rules:
        chat.notice('you gave no rules; they stand in the config file, for instance allow = ["shell: git status"]')
    context = chat.work.context
    if context.sandbox is not None:
        network = "with" if chat.settings.network else "without"
        chat.notice(f"commands run in a sandbox, {network} network")
    else:
        chat.notice(context.unconfined or "commands run with all your rights (--no-sandbox)", "warning")


async def _diff(chat: Chat, rest: str) -> None:
    result = await call_tool(DiffTool(), {"path": rest or "."}, chat.work.context)
    if result.is_error or not result.display:
        chat.notice(result.text, "warning" if result.is_error else "info")
        return
    chat.sink(
        ToolEnded(call_id="", name="diff", is_error=False, duration_s=0, text=result.text, display=result.display)
    )


async def _undo(chat: Chat, rest: str) -> None:
    for line in chat.work.journal.undo_request(own=True) or ["there is nothing to undo"]:
        chat.notice(line.strip())


async def _sessions(chat: Chat, rest: str) -> None:
    found = (
        summary
        for summary in SessionStore(chat.settings.sessions_dir).list()
        if summary.command == "chat" and summary.repo == str(chat.repo)
    )
    for summary in itertools.islice(found, MAX_SESSIONS):
        here = " (this one)" if summary.run_id == chat.out.run_id else ""
        chat.notice(f"{summary.run_id}{here}  {one_line(summary.task, 60)}")
    chat.notice("m3 chat --resume ID goes on with one")


async def _export(chat: Chat, rest: str) -> None:
    path = Path(rest or f"{chat.out.run_id}.md").expanduser()
    path = path if path.is_absolute() else chat.repo / path
    recording = SessionStore(chat.settings.sessions_dir).read(chat.out.run_id)
    text = to_markdown(recording, chat.settings.secrets)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise M3Error(f"{path} cannot be written: {error.strerror}. Give another name: /export FILE") from error
    chat.notice(f"the conversation so far is in {path}")


async def _quit(chat: Chat, rest: str) -> None:
    chat.leave()


COMMANDS = {
    "/help": Command(help="what can be typed here", run=_help, instant=True),
    "/model": Command(help="which model answers; /model NAME changes it", run=_model),
    "/mode": Command(help="plan, ask, edit or auto (Shift+Tab)", run=_mode, instant=True),
    "/context": Command(help="how full the window is", run=_context, instant=True),
    "/diff": Command(help="what changed since the last commit; /diff PATH", run=_diff),
    "/undo": Command(help="put back the files that the last request changed", run=_undo),
    "/permissions": Command(help="what may run unasked", run=_permissions, instant=True),
    "/sessions": Command(help="earlier chats about this repository", run=_sessions, instant=True),
    "/export": Command(help="write the conversation to a new Markdown file; /export FILE", run=_export),
    "/stats": Command(help="turns, tokens and speed", run=_stats, instant=True),
    "/quit": Command(help="leave (Ctrl-D)", run=_quit, instant=True),
}
