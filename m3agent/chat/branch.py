"""New branches of a conversation: a session of its own that begins like another one, which stays as it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from m3agent import __version__
from m3agent.chat.aside import reply
from m3agent.chat.resume import Request
from m3agent.errors import M3Error
from m3agent.events import Event, MessageAdded, Notice, RequestStarted, RunEnded, RunStarted
from m3agent.llm.protocol import ContextFull
from m3agent.messages import Message, TextPart, user
from m3agent.prompt import prompt_text
from m3agent.session.store import SessionStore, new_run_id
from m3agent.ui.clean import one_line

if TYPE_CHECKING:
    from m3agent.chat.talk import Chat

SHORTER = (None, 2000, 200)
"""Characters of each tool result that a summary is made from: whole ones first, less when they do not fit."""
SUMMARY = "This conversation was longer. In its place stands this summary, which you wrote:\n\n"
MAX_LISTED = 15


def fork(chat: Chat) -> None:
    """Go on in a new session with the same past."""
    before = chat.out.run_id
    _branch(chat, _recorded(chat), chat.work.conversation.messages, chat.requests, f"a fork of {before}")
    chat.notice(f"this is a fork now, {chat.out.run_id}; m3 chat --resume {before} goes on with the other one")


def rewind(chat: Chat, which: str) -> None:
    """Go back to before a request, in the conversation and in the files. 1 is the last; without a number, list them.

    Errors: M3Error when a file was changed by somebody else since; nothing is touched then.
    """
    requests = [request for request in chat.requests if 0 < request.at < len(chat.work.conversation.messages)]
    if not requests:
        chat.notice("there is nothing to go back to")
        return
    if not which:
        for number, request in enumerate(reversed(requests[-MAX_LISTED:]), start=1):
            chat.notice(f"{number:>3}  {_text(chat, request)}")
        chat.notice("/rewind NUMBER goes back to before it: the conversation and the files")
        return
    if not which.isdecimal() or not 1 <= int(which) <= len(requests):
        raise M3Error(f"there is no request {which!r} to go back to; /rewind lists them")
    target = requests[-int(which)]
    text, before = _text(chat, target), chat.out.run_id
    later = chat.requests[chat.requests.index(target) :]
    lines = chat.work.journal.undo_requests({request.id for request in later})
    events = _recorded(chat)
    cut = next((i for i, event in enumerate(events) if event == RequestStarted(request=target.id)), len(events))
    kept = chat.requests[: chat.requests.index(target)]
    _branch(chat, events[:cut], chat.work.conversation.messages[: target.at], kept, f"{before} up to: {text}")
    for line in lines:
        chat.notice(line.strip())
    chat.notice(f"back to before: {text} (m3 chat --resume {before} still holds what came after)")


async def compact(chat: Chat) -> None:
    """Replace the conversation by a summary that the model writes of it.

    Errors: ModelError, and M3Error when the summary would save nothing; the conversation stays as it is then.
    """
    messages = chat.work.conversation.messages
    if len(messages) < 3:
        raise M3Error("there is nothing to make shorter yet")
    chat.notice("writing a summary of the conversation…")
    summary = await _summary(chat, messages)
    before, after = _characters(messages[1:]), len(summary)
    if after > before // 2:
        raise M3Error(f"a summary would not save much ({before:,} characters, {after:,} after); nothing was changed")
    kept = (messages[0], user(SUMMARY + summary))
    old = chat.out.run_id
    events: list[Event] = [*(RequestStarted(request=request.id) for request in chat.requests)]
    requests = [dataclasses.replace(request, at=0) for request in chat.requests]  # files can be put back, words not
    _branch(chat, [*events, *(MessageAdded(message=m) for m in kept)], kept, requests, f"a summary of {old}")
    chat.meter.context_tokens = 0
    chat.notice(f"{before:,} characters became {after:,}; m3 chat --resume {old} still holds all of them")


async def _summary(chat: Chat, messages: Sequence[Message]) -> str:
    for limit in SHORTER:
        try:
            return await reply(chat, [*(_shorter(m, limit) for m in messages), user(prompt_text("compact"))])
        except ContextFull as error:
            full = error
    raise M3Error(f"even a shortened conversation does not fit ({full}); /rewind goes back to a part that does")


def _shorter(message: Message, limit: int | None) -> Message:
    if limit is None or message.role != "tool" or len(message.text) <= limit:
        return message
    text = f"{message.text[:limit]}\n… {len(message.text) - limit:,} more characters"
    return dataclasses.replace(message, parts=(TextPart(text=text),))


def _branch(
    chat: Chat, events: Iterable[Event], messages: Sequence[Message], requests: Sequence[Request], what: str
) -> None:
    run_id, info = new_run_id(), chat.model.info
    started = RunStarted(
        run_id=run_id, command="chat", model=info.name, repo=str(chat.repo), task=what, version=__version__
    )
    chat.out.branch(run_id, [started, Notice(text=f"{run_id} is {what}"), *events])
    chat.work = chat.work.branched(messages, chat.out)
    chat.requests = list(requests)


def _recorded(chat: Chat) -> list[Event]:
    """What was saved of this conversation, without the beginnings and ends of runs."""
    recording = SessionStore(chat.settings.sessions_dir).read(chat.out.run_id)
    return [event for event in recording.events if not isinstance(event, RunStarted | RunEnded)]


def _text(chat: Chat, request: Request) -> str:
    return one_line(chat.work.conversation.messages[request.at].text, 60)


def _characters(messages: Iterable[Message]) -> int:
    return sum(len(message.text) + len(message.reasoning) for message in messages)
