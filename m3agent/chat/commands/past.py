"""Commands about the conversation so far: summaries, branches, questions aside, exports."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from m3agent.chat import branch
from m3agent.chat.aside import ask_aside
from m3agent.errors import M3Error
from m3agent.session.export import to_html, to_markdown
from m3agent.session.store import SessionStore

if TYPE_CHECKING:
    from m3agent.chat.talk import Chat


async def compact(chat: Chat, rest: str) -> None:
    await branch.compact(chat)


async def btw(chat: Chat, rest: str) -> None:
    await ask_aside(chat, rest)


async def rewind(chat: Chat, rest: str) -> None:
    branch.rewind(chat, rest)


async def fork(chat: Chat, rest: str) -> None:
    branch.fork(chat)


async def export(chat: Chat, rest: str) -> None:
    path = Path(rest or f"{chat.out.run_id}.md").expanduser()
    path = path if path.is_absolute() else chat.repo / path
    recording = SessionStore(chat.settings.sessions_dir).read(chat.out.run_id)
    to_text = to_html if path.suffix in (".html", ".htm") else to_markdown
    text = to_text(recording, chat.settings.secrets)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise M3Error(f"{path} cannot be written: {error.strerror}. Give another name: /export FILE") from error
    chat.notice(f"the conversation so far is in {path}")
