"""Opens a chat and ends it: the model, the session file, the terminal or the pipe."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from m3agent import __version__
from m3agent.approval import Mode
from m3agent.chat.talk import Chat
from m3agent.errors import M3Error
from m3agent.events import MessageAdded, Notice, RunEnded, RunStarted
from m3agent.exits import Exit
from m3agent.llm.factory import open_model
from m3agent.messages import Message
from m3agent.outputs import Outputs, open_outputs
from m3agent.session.store import SessionStore
from m3agent.settings import Settings
from m3agent.signals import interrupt_exit
from m3agent.ui.clean import one_line
from m3agent.ui.input import unechoed
from m3agent.ui.surface import LiveSurface
from m3agent.ui.terminal import TerminalView
from m3agent.workspace import open_workspace

LAST = "last"
"""Stands for the newest chat about a repository."""


async def chat(settings: Settings, repo: Path, *, mode: Mode, first: str, resume: str | None, seed: int | None) -> int:
    """Talk until the person leaves. The exit code is 0, or that of an interrupt.

    Errors: ModelError when the model cannot be opened, M3Error for a session that does not exist.
    """
    if resume == LAST:
        resume = last_chat(settings, repo)
    history = resumed_messages(settings, resume) if resume else ()
    with unechoed():
        return await _chat(settings, repo, mode=mode, first=first, resume=resume, history=history, seed=seed)


async def _chat(
    settings: Settings,
    repo: Path,
    *,
    mode: Mode,
    first: str,
    resume: str | None,
    history: tuple[Message, ...],
    seed: int | None,
) -> int:
    with _loading(settings.model):
        model = await open_model(settings)
    start = time.monotonic()
    talk: Chat | None = None
    try:
        with open_outputs(settings, resume=resume, result=False) as out:
            code, outcome = Exit.OK, "left"
            if resume:
                out.sink(Notice(text=f"going on with {out.run_id}: {len(history)} messages"))
            else:
                name = model.info.name
                out.sink(
                    RunStarted(
                        run_id=out.run_id, command="chat", model=name, repo=str(repo), task=first, version=__version__
                    )
                )
            try:
                work = await open_workspace(settings, model.info, repo, command="chat", outputs=out, history=history)
                talk = Chat(settings, model, out, work, repo, mode=mode, seed=seed)
                await _run(talk, out, repo, first)
            except asyncio.CancelledError as error:
                code, outcome = interrupt_exit(error), "interrupted"
                raise
            finally:
                if talk is not None:
                    await talk.work.close()
                out.sink(
                    RunEnded(
                        exit_code=code,
                        outcome=outcome,
                        summary=f"m3 chat --resume {out.run_id} goes on from here",
                        duration_s=time.monotonic() - start,
                    )
                )
    finally:
        await (talk.model if talk else model).aclose()
    return 0


async def _run(talk: Chat, out: Outputs, repo: Path, first: str) -> None:
    """Run the chat at its terminal, or over its pipe."""
    if not (sys.stdin.isatty() and isinstance(out.view, TerminalView)):
        await talk.run(first)
        return
    from m3agent.chat.commands import COMMANDS
    from m3agent.repository.files import file_names
    from m3agent.ui.ask import screen_approver
    from m3agent.ui.completion import ChatCompleter
    from m3agent.ui.screen import Screen

    inbox = talk.listen()
    completer = ChatCompleter(
        {name: c.help for name, c in COMMANDS.items()}, lambda: file_names(repo, talk.settings.secrets)
    )
    screen = Screen(
        out.view.console,
        talk,
        completer=completer,
        history=_history_file(talk.settings.state_dir, repo),
        vi=talk.settings.keys == "vi",
    )
    talk.approve = screen_approver(screen, out.view)
    out.view.surface = screen
    drawing = asyncio.create_task(screen.run())
    drawing.add_done_callback(lambda task: inbox.close())  # also when the terminal goes away
    try:
        await talk.run(first)
    finally:
        out.view.close()
        screen.close()
        await asyncio.wait([drawing])
        out.view.surface = LiveSurface(out.view.console)
        if (error := drawing.exception()) is not None and not isinstance(error, EOFError):
            raise error


def _history_file(state_dir: Path, repo: Path) -> Path:
    """Where the drafts of a repository are kept."""
    folder = state_dir / "history"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder / hashlib.sha256(str(repo).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _loading(model: str) -> Iterator[None]:
    """A word on the terminal while the model is loaded."""
    console = Console(stderr=True, highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        yield
        return
    with console.status(f"loading {one_line(model, 60)}", spinner="dots"):
        yield


def last_chat(settings: Settings, repo: Path) -> str:
    """The id of the newest chat about this repository. Raises M3Error if there is none."""
    for summary in SessionStore(settings.sessions_dir).list():
        if summary.command == "chat" and summary.repo == str(repo):
            return summary.run_id
    raise M3Error(f"there is no chat about {repo} to go on with; `m3 sessions list` shows what there is")


def resumed_messages(settings: Settings, run_id: str) -> tuple[Message, ...]:
    """The conversation of a saved session. A call without a result is answered later on, and never run again."""
    recording = SessionStore(settings.sessions_dir).read(run_id)
    messages = tuple(event.message for event in recording.events if isinstance(event, MessageAdded))
    if not messages:
        raise M3Error(f"the session {recording.run_id} holds no conversation; `m3 sessions list` shows others")
    return messages
