"""Gives a chat its face: the screen of a terminal, plain lines on one, or a pipe."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from pathlib import Path

from m3agent.approval import Answer, Approver, Question
from m3agent.chat.talk import Chat
from m3agent.ui.surface import LiveSurface
from m3agent.ui.terminal import TerminalView


async def run_for_person(talk: Chat, first: str) -> None:
    """Run the chat until the person leaves."""
    if not sys.stdin.isatty() or not sys.stderr.isatty():
        await talk.run(first)
    elif isinstance(view := talk.out.view, TerminalView):
        await _run_on_screen(talk, view, first)
    else:
        await _run_in_lines(talk, first)


async def _run_on_screen(talk: Chat, view: TerminalView, first: str) -> None:
    from m3agent.chat.commands import helps
    from m3agent.repository.files import file_names
    from m3agent.ui.ask import approver
    from m3agent.ui.completion import ChatCompleter
    from m3agent.ui.screen import Screen

    inbox = talk.listen()
    settings = talk.settings
    screen = Screen(
        view.console,
        talk,
        completer=ChatCompleter(helps(talk), lambda: file_names(talk.repo, talk.settings.secrets)),
        history=_history_file(settings.state_dir, talk.repo),
        vi=settings.keys == "vi",
        theme=settings.theme,
        notify=settings.notify,
    )
    talk.face = screen
    talk.approve = _paused(approver(screen.print, screen.ask, talk.rules.append), view)
    view.surface = screen
    drawing = asyncio.create_task(screen.run())
    drawing.add_done_callback(lambda task: inbox.close())  # also when the terminal goes away
    try:
        await talk.run(first)
    finally:
        view.close()
        screen.close()
        await asyncio.wait([drawing])
        view.surface = LiveSurface(view.console)
        if (error := drawing.exception()) is not None and not isinstance(error, EOFError):
            raise error


async def _run_in_lines(talk: Chat, first: str) -> None:
    from m3agent.ui.ask import approver
    from m3agent.ui.lines import Lines
    from m3agent.ui.plain import PlainView

    assert isinstance(talk.out.view, PlainView)
    talk.listen()
    lines = Lines(talk.out.view, talk)
    talk.face = lines
    talk.approve = approver(lines.show, lines.ask, talk.rules.append)
    reading = asyncio.create_task(lines.run())
    try:
        await talk.run(first)
    finally:
        reading.cancel()


def _paused(approve: Approver, view: TerminalView) -> Approver:
    """The live lines of the view go away before a question, and come back when the call goes on."""

    async def approve_paused(asked: Question) -> Answer:
        view.close()
        answer = await approve(asked)
        if answer.accepted:
            view.resume()
        return answer

    return approve_paused


def _history_file(state_dir: Path, repo: Path) -> Path:
    """Where the drafts of a repository are kept."""
    folder = state_dir / "history"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / hashlib.sha256(str(repo).encode()).hexdigest()[:16]
