"""The prompt: a system text, then messages that are only ever appended.

The prompt of turn n+1 starts with the prompt of turn n, so the model's cache of it stays valid. Nothing here edits,
moves or removes a message, and nothing that changes with time stands before the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib import resources

from m3agent.events import MessageAdded
from m3agent.llm.protocol import ModelInfo
from m3agent.messages import Message, system, tool_result
from m3agent.sinks import EventSink


class Conversation:
    """The messages of one run. Every message that enters is an event, so a session holds the whole conversation."""

    def __init__(self, sink: EventSink, messages: Iterable[Message] = ()):
        """Start with `messages`, which are taken as they are (a resumed session, a fork) and not announced again."""
        self._sink = sink
        self._messages = list(messages)

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(self._messages)

    def add(self, message: Message) -> None:
        self._messages.append(message)
        self._sink(MessageAdded(message=message))

    def fork(self, sink: EventSink | None = None) -> Conversation:
        """An independent continuation of the same beginning."""
        return Conversation(sink or self._sink, self._messages)

    def close_open_calls(self, reason: str) -> None:
        """Answer every call that has no result yet, so that the history is valid after an interrupt."""
        for call_id in open_calls(self._messages):
            self.add(tool_result(call_id, reason, is_error=True))


def open_calls(messages: Iterable[Message]) -> list[str]:
    """Ids of the calls without a result, in order."""
    waiting: dict[str, None] = {}
    for message in messages:
        waiting.update(dict.fromkeys(call.id for call in message.tool_calls))
        if message.tool_call_id is not None:
            waiting.pop(message.tool_call_id, None)
    return list(waiting)


def answered(messages: Sequence[Message]) -> Sequence[Message]:
    """The longest beginning in which every call has its result."""
    waiting: set[str] = set()
    end = 0
    for number, message in enumerate(messages, start=1):
        waiting |= {call.id for call in message.tool_calls}
        waiting.discard(message.tool_call_id or "")
        end = end if waiting else number
    return messages[:end]


def system_prompt(info: ModelInfo, *, command: str, surroundings: str = "", repository: str = "") -> Message:
    """The first message of a run.

    `command` is fix, run or chat. `surroundings` says where the model works, `repository` is the text of the repository
    prefix. The small embedded model gets the one sentence that it was trained with, and nothing else: it reads what it
    needs through its tools.
    """
    if info.is_nano:
        return system(prompt_text("nano"))
    parts = [prompt_text("system"), prompt_text(command), surroundings, repository]
    return system("\n\n".join(part for part in parts if part))


def prompt_text(name: str) -> str:
    """One of the texts in `m3agent/prompts`."""
    return resources.files("m3agent").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8").strip()
