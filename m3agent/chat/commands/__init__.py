"""The lines with a slash: one table, and what each command does in the files beside it.

`tell` only shows or sets something, `work` changes files or runs tests, `past` is about the conversation so far.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from m3agent.chat.commands import past, tell, work
from m3agent.errors import M3Error
from m3agent.messages import user
from m3agent.ui.listener import is_command

if TYPE_CHECKING:
    from m3agent.chat.talk import Chat


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """`run` gets the chat and what stands behind the name. An instant command does not wait for a turn to end."""

    help: str
    run: Callable[[Chat, str], Awaitable[None]]
    instant: bool = False


async def run_command(chat: Chat, line: str) -> None:
    """Do what the line says; a wrong one is told, and errors end only the command."""
    name, _, rest = line.strip().partition(" ")
    if (command := COMMANDS.get(name)) is None:
        if (custom := chat.custom.get(name)) is not None:
            await chat.answer(user(custom.with_arguments(rest.strip())))
            return
        chat.notice(f"there is no command {name}; /help lists them", "warning")
        return
    try:
        await command.run(chat, rest.strip())
    except M3Error as error:
        chat.notice(str(error), "warning")


def helps(chat: Chat) -> dict[str, str]:
    """What each command does, those of the repository included."""
    own = {name: command.help for name, command in COMMANDS.items()}
    return {**{name: custom.help for name, custom in chat.custom.items()}, **own}


def is_instant(chat: Chat, line: str) -> bool:
    """Whether the line is done at once while a turn runs; so is one that names no command, which is told."""
    if not is_command(line):
        return False
    name = line.split()[0]
    return COMMANDS[name].instant if name in COMMANDS else name not in chat.custom


async def _help(chat: Chat, rest: str) -> None:
    from m3agent.ui.keys import KEYS

    for name, help_text in (*helps(chat).items(), *KEYS.items()):
        chat.notice(f"{name:<13} {help_text}")


COMMANDS = {
    "/help": Command(help="what can be typed here", run=_help, instant=True),
    "/model": Command(help="which model answers; /model NAME changes it", run=tell.model),
    "/mode": Command(help="plan, ask, edit or auto (Shift+Tab)", run=tell.mode, instant=True),
    "/context": Command(help="how full the window is", run=tell.context, instant=True),
    "/compact": Command(help="replace the conversation by a summary of it", run=past.compact),
    "/btw": Command(help="/btw QUESTION asks aside: neither it nor the answer is kept", run=past.btw, instant=True),
    "/diff": Command(help="what changed since the last commit; /diff PATH", run=work.diff),
    "/image": Command(help="the clipboard's picture goes with your next message; /image FILE", run=work.image),
    "/undo": Command(help="put back the files that the last request changed", run=work.undo),
    "/rewind": Command(help="go back to before a request: conversation and files; /rewind NUMBER", run=past.rewind),
    "/fork": Command(help="go on in a new session with the same past", run=past.fork),
    "/test": Command(help="run the tests yourself; /test ID...", run=work.test),
    "/fix": Command(help="/fix REF repairs an issue in a copy, with proof (m3 fix)", run=work.fix),
    "/todo": Command(help="the model's list of steps", run=tell.todo, instant=True),
    "/permissions": Command(help="what may run unasked", run=tell.permissions, instant=True),
    "/mcp": Command(help="the MCP servers and their tools", run=tell.mcp, instant=True),
    "/sessions": Command(help="earlier chats about this repository", run=tell.sessions, instant=True),
    "/export": Command(help="write the conversation to a new file, .md or .html; /export FILE", run=past.export),
    "/stats": Command(help="turns, tokens and speed", run=tell.stats, instant=True),
    "/theme": Command(help="dark, light, contrast or none; /theme NAME", run=tell.theme, instant=True),
    "/doctor": Command(help="check what m3 needs on this machine", run=tell.doctor, instant=True),
    "/quit": Command(help="leave (Ctrl-D)", run=tell.leave, instant=True),
}
