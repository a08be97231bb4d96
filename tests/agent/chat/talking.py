"""A chat without a terminal: real files, real git, a real session, a scripted model."""

from __future__ import annotations

import asyncio
import dataclasses
import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from m3agent.approval import Answer, Mode, Question
from m3agent.chat.resume import saved_conversation
from m3agent.chat.talk import Chat
from m3agent.events import Event, Notice, RunStarted
from m3agent.llm.scripted import ScriptedModel, Turn
from m3agent.outputs import Outputs
from m3agent.session.store import SessionStore
from m3agent.settings import Settings, load_settings
from m3agent.sinks import Recorder, tee
from m3agent.ui.plain import PlainView
from m3agent.workspace import open_workspace


@dataclasses.dataclass(kw_only=True)
class Conversed:
    """A chat that has ended: the chat, its model, what it told, and what it was at its beginning."""

    chat: Chat
    model: ScriptedModel
    events: list[Event]
    began_as: str

    @property
    def told(self) -> str:
        return "\n".join(event.text for event in self.events if isinstance(event, Notice))

    @property
    def texts(self) -> list[str]:
        """The conversation without its system message."""
        return [message.text for message in self.chat.work.conversation.messages[1:]]


class Lines:
    """Gives one line after the other."""

    def __init__(self, lines: Sequence[str]):
        self._lines = list(lines)

    async def read(self) -> str | None:
        return self._lines.pop(0) if self._lines else None

    def messages(self) -> list[str]:
        return []


def settings_in(home: Path) -> Settings:
    return load_settings(environ={"M3_HOME": str(home), "PATH": "/usr/bin:/bin"}, sandbox=False)


def converse(
    home: Path,
    repo: Path,
    turns: Sequence[Turn],
    lines: Sequence[str],
    *,
    resume: str | None = None,
    mode: Mode = "auto",
    approves: bool = False,
    beside: str = "",
) -> Conversed:
    """Say the lines one after the other, each when the one before is answered; `beside` when something is approved."""
    return asyncio.run(_converse(settings_in(home), repo, turns, lines, resume, mode, approves, beside))


async def _yes(question: Question) -> Answer:
    return Answer(accepted=True)


async def _yes_but_first(chat: Chat, line: str, question: Question) -> Answer:
    chat.submit(line)
    await asyncio.sleep(0.1)
    return Answer(accepted=True)


async def _converse(
    settings: Settings,
    repo: Path,
    turns: Sequence[Turn],
    lines: Sequence[str],
    resume: str | None,
    mode: Mode,
    approves: bool,
    beside: str,
) -> Conversed:
    store = SessionStore(settings.sessions_dir)
    saved = saved_conversation(settings, resume) if resume else None
    session = store.append(resume) if resume else store.create()
    recorder, view, model = Recorder(), PlainView(io.StringIO()), ScriptedModel(turns)
    out = Outputs(store, session, view, tee(view, recorder), settings.state_dir / "output")
    try:
        if saved is None:
            out.sink(RunStarted(run_id=out.run_id, command="chat", model="m", repo=str(repo), task="", version="0"))
        history = saved.messages if saved else ()
        work = await open_workspace(settings, model.info, repo, command="chat", outputs=out, history=history)
        requests = saved.requests if saved else ()
        chat = Chat(settings, model, out, work, repo, mode=mode, seed=None, requests=requests, lines=Lines(lines))
        chat.approve = _yes if approves else None
        if beside:
            chat.approve = partial(_yes_but_first, chat, beside)
        began_as = out.run_id
        await chat.run("")
        await work.close()
        return Conversed(chat=chat, model=model, events=recorder.events, began_as=began_as)
    finally:
        out.close()
