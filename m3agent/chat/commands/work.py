"""Commands that run tests and change files, or show what was changed."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from m3_tools.base import call_tool
from m3_tools.diff import DiffTool
from m3_tools.screenshot.dropped import dropped_path
from m3agent.chat.own import run_for_person
from m3agent.errors import M3Error
from m3agent.events import Event, RunEnded, ToolEnded
from m3agent.images import read_clipboard_image, read_images
from m3agent.llm.protocol import LanguageModel, ModelInfo
from m3agent.messages import user
from m3agent.session.store import SessionStore
from m3agent.settings import Settings
from m3agent.sinks import tee
from m3agent.ui.clean import one_line

if TYPE_CHECKING:
    from m3agent.chat.talk import Chat


async def diff(chat: Chat, rest: str) -> None:
    result = await call_tool(DiffTool(), {"path": rest or "."}, chat.work.context)
    if result.is_error or not result.display:
        chat.notice(result.text, "warning" if result.is_error else "info")
        return
    chat.sink(
        ToolEnded(call_id="", name="diff", is_error=False, duration_s=0, text=result.text, display=result.display)
    )


async def image(chat: Chat, rest: str) -> None:
    if not rest:
        chat.attach(await asyncio.to_thread(read_clipboard_image, chat.settings.command_environment))
        return
    path = dropped_path(rest)
    chat.attach(*await asyncio.to_thread(read_images, [path if path.is_absolute() else chat.repo / path]))


async def undo(chat: Chat, rest: str) -> None:
    for line in chat.work.journal.undo_request({r.id for r in chat.requests}) or ["there is nothing to undo"]:
        chat.notice(line.strip())


async def test(chat: Chat, rest: str) -> None:
    try:
        tests = shlex.split(rest)
    except ValueError as error:
        raise M3Error(f"{rest!r} cannot be read: {error}. Put quotes around an id with spaces") from error
    tool = next(tool for tool in chat.work.tools if tool.name == "test")
    await run_for_person(chat, tool, {"tests": tests}, "I ran the tests myself" + (f": {rest}." if rest else "."))


async def fix(chat: Chat, rest: str) -> None:
    """Run `m3 fix` with the model of the chat. It has a session of its own; the conversation hears how it ended."""
    from m3agent.fix.flow import Fix
    from m3agent.fix.intake import load_issue
    from m3agent.fix.request import FixRequest

    if not rest or len(rest.split()) != 1 or rest == "-":
        raise M3Error("name an issue: /fix 12, /fix https://…, or /fix a-file.md")
    issue = await asyncio.to_thread(load_issue, rest, chat.repo, chat.settings)
    ended: list[RunEnded] = []

    def keep(event: Event) -> None:
        if isinstance(event, RunEnded):
            ended.append(event)

    with SessionStore(chat.settings.sessions_dir, chat.settings.secrets).create() as saved:
        fix = Fix(
            FixRequest(repo=chat.repo, issue=issue),
            chat.settings,
            tee(saved, chat.out.view, keep),
            run_id=saved.run_id,
            spill_dir=chat.out.spill_dir,
            opener=_lender(chat.model),
        )
        await fix.run()
    told = f"{ended[-1].outcome}. {ended[-1].summary}" if ended else "it did not end"
    chat.work.conversation.add(user(f"I ran `m3 fix` on the issue {issue.title!r}. How it ended: {told}"))
    chat.notice(f"its session is {saved.run_id}: {one_line(told, 60)}")


class _Lent:
    """The chat's model for somebody who closes what they are given."""

    def __init__(self, model: LanguageModel):
        self._model = model
        self.stream = model.stream

    @property
    def info(self) -> ModelInfo:
        return self._model.info

    async def aclose(self) -> None:
        """The chat still needs it."""


def _lender(model: LanguageModel) -> Callable[[Settings], Awaitable[LanguageModel]]:
    async def lend(settings: Settings) -> LanguageModel:
        return _Lent(model)

    return lend
