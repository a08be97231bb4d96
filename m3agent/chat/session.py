"""Opens a chat and ends it: the model, the session file, the views."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from m3_tools.screenshot.picture import Picture
from m3agent import __version__
from m3agent.approval import Mode
from m3agent.chat.faces import run_for_person
from m3agent.chat.resume import Saved, last_chat, saved_conversation
from m3agent.chat.talk import Chat
from m3agent.events import Notice, RunEnded, RunStarted
from m3agent.exits import Exit
from m3agent.llm.factory import open_model
from m3agent.outputs import draws_live, open_outputs
from m3agent.settings import Settings
from m3agent.signals import interrupt_exit
from m3agent.ui.clean import one_line
from m3agent.ui.input import unechoed
from m3agent.ui.themes import use_theme
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
    echoes = contextlib.nullcontext() if not draws_live(sys.stderr, settings) else unechoed()
    with echoes:
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
    with _loading(settings):
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
                await run_for_person(talk, first)
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


@contextlib.contextmanager
def _loading(settings: Settings) -> Iterator[None]:
    """A word on the terminal while the model is loaded."""
    words = f"loading {one_line(settings.model, 60)}"
    console = Console(stderr=True, highlight=False, emoji=False, markup=False)
    if not console.is_terminal:
        yield
    elif not draws_live(sys.stderr, settings):
        console.print(words)
        yield
    else:
        use_theme(console, settings.theme)
        with console.status(words, spinner="dots", spinner_style="accent"):
            yield
