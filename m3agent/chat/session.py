"""Opens a chat and ends it: the model, the session file, the terminal or the pipe."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from m3_tools.screenshot.picture import Picture
from m3agent import __version__
from m3agent.approval import Mode
from m3agent.chat.resume import Saved, last_chat, saved_conversation
from m3agent.chat.talk import Chat
from m3agent.events import Notice, RunEnded, RunStarted
from m3agent.exits import Exit
from m3agent.llm.factory import open_model
from m3agent.outputs import Outputs, open_outputs
from m3agent.settings import Settings
from m3agent.signals import interrupt_exit
from m3agent.ui.clean import one_line
from m3agent.ui.input import unechoed
from m3agent.ui.surface import LiveSurface
from m3agent.ui.terminal import TerminalView
from m3agent.workspace import open_workspace

LAST = "last"
"""Stands for the newest chat about a repository."""


async def chat(
    settings: Settings,
    repo: Path,
    *,
    mode: Mode,
    first: str,
    pictures: Sequence[Picture] = (),
    resume: str | None,
    seed: int | None,
) -> int:
    """Talk until the person leaves. The exit code is 0, or that of an interrupt.

    Errors: ModelError when the model cannot be opened, M3Error for a session that does not exist.
    """
    if resume == LAST:
        resume = last_chat(settings, repo)
    saved = saved_conversation(settings, resume) if resume else Saved()
    with unechoed():
        return await _chat(
            settings, repo, mode=mode, first=first, pictures=pictures, resume=resume, saved=saved, seed=seed
        )


async def _chat(
    settings: Settings,
    repo: Path,
    *,
    mode: Mode,
    first: str,
    pictures: Sequence[Picture],
    resume: str | None,
    saved: Saved,
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
                out.sink(Notice(text=f"going on with {out.run_id}: {len(saved.messages)} messages"))
                for line in saved.lost:
                    out.sink(Notice(text=line, level="warning"))
            if not resume or saved.is_empty:
                name = model.info.name
                out.sink(
                    RunStarted(
                        run_id=out.run_id, command="chat", model=name, repo=str(repo), task=first, version=__version__
                    )
                )
            try:
                work = await open_workspace(
                    settings, model.info, repo, command="chat", outputs=out, history=saved.messages
                )
                talk = Chat(settings, model, out, work, repo, mode=mode, seed=seed, requests=saved.requests)
                talk.attach(*pictures)
                await _run(talk, out, repo, first)
            except asyncio.CancelledError as error:
                code, outcome = interrupt_exit(error), "interrupted"
                raise
            finally:
                if talk is not None:
                    for line in await talk.work.close():
                        out.sink(Notice(text=line))
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
    from m3agent.chat.commands import helps
    from m3agent.repository.files import file_names
    from m3agent.ui.ask import screen_approver
    from m3agent.ui.completion import ChatCompleter
    from m3agent.ui.screen import Screen

    inbox = talk.listen()
    completer = ChatCompleter(
        helps(talk),
        lambda: file_names(repo, talk.settings.secrets),
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
