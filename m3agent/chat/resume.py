"""A saved conversation, to go on with: what it holds, what a person asked in it, and what was lost when it ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from m3agent.errors import M3Error
from m3agent.events import AnswerText, Event, MessageAdded, RequestStarted, RunEnded, ThinkText, TurnStarted
from m3agent.messages import Message
from m3agent.prompt import open_calls
from m3agent.session.store import Recording, SessionStore
from m3agent.settings import Settings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """Something that a person asked for. `id` is its name in the undo history, `at` the number of messages before."""

    id: str
    at: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Saved:
    """A conversation as it was saved. `lost` says in sentences what a sudden end left unfinished."""

    messages: tuple[Message, ...] = ()
    requests: tuple[Request, ...] = ()
    lost: tuple[str, ...] = ()
    is_empty: bool = False
    """Whether not even its first event was saved."""


def saved_conversation(settings: Settings, run_id: str) -> Saved:
    """The conversation of a session, also of one that was killed at any moment.

    A call without a result is never run again; whoever goes on gives it one. Errors: M3Error when there is none of this
    name, or its file is damaged.
    """
    recording = SessionStore(settings.sessions_dir).read(run_id)
    messages: list[Message] = []
    requests: list[Request] = []
    for event in recording.events:
        if isinstance(event, MessageAdded):
            messages.append(event.message)
        elif isinstance(event, RequestStarted):
            requests.append(Request(id=event.request, at=len(messages)))
    return Saved(
        messages=tuple(messages),
        requests=tuple(requests),
        lost=tuple(_lost(recording, messages)),
        is_empty=not recording.events,
    )


def last_chat(settings: Settings, repo: Path) -> str:
    """The id of the newest chat about this repository. Raises M3Error if there is none."""
    for summary in SessionStore(settings.sessions_dir).list():
        if summary.command == "chat" and summary.repo == str(repo):
            return summary.run_id
    raise M3Error(f"there is no chat about {repo} to go on with; `m3 sessions list` shows what there is")


def _lost(recording: Recording, messages: Sequence[Message]) -> list[str]:
    lines = []
    if recording.torn:
        lines.append("the last line of the session was cut off and is dropped")
    if unfinished := _unfinished_reply(recording.events):
        lines.append(f"the reply that was being written is dropped ({unfinished:,} characters)")
    names = {call.id: call.name for message in messages for call in message.tool_calls}
    lines += [f"{names[call_id]} was interrupted and is not run again" for call_id in open_calls(messages)]
    return lines


def _unfinished_reply(events: Sequence[Event]) -> int:
    """Characters of a last reply that never became a message."""
    characters = 0
    for event in reversed(events):
        match event:
            case MessageAdded() | TurnStarted() | RunEnded():
                break
            case AnswerText() | ThinkText():
                characters += len(event.text)
    return characters
