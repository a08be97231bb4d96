"""Asks the model beside the conversation: it reads everything so far, and neither question nor answer is added."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from m3_tools.base import tool_spec
from m3agent.errors import M3Error
from m3agent.events import Aside
from m3agent.messages import Message, user
from m3agent.prompt import answered
from m3agent.sinks import discard
from m3agent.turn import take_turn

if TYPE_CHECKING:
    from m3agent.chat.talk import Chat

MAX_ANSWER_TOKENS = 4096
WITHOUT_TOOLS = "(A question aside: answer it briefly from what you know by now. No tool can be called for it.)"


async def ask_aside(chat: Chat, question: str) -> None:
    """Answer a question beside the conversation, also while it goes on."""
    if not question:
        chat.notice("write a question behind it: /btw what does this flag do?", "warning")
        return
    chat.notice(f"asked aside: {question}")
    messages = answered(chat.work.conversation.messages)
    answer = await reply(chat, [*messages, user(f"{question}\n\n{WITHOUT_TOOLS}")])
    chat.sink(Aside(question=question, answer=answer))


async def reply(chat: Chat, messages: Sequence[Message]) -> str:
    """What the model says to these messages. It sees its tools, so that what it has read stays in its cache.

    Errors: ModelError, and M3Error when it says nothing.
    """
    options = chat.work.options(chat.settings)
    options = dataclasses.replace(options, max_tokens=min(options.max_tokens, MAX_ANSWER_TOKENS))
    specs = [tool_spec(tool) for tool in chat.work.tools]
    answer = await take_turn(chat.model, messages, specs, options, discard, number=1)
    if not answer.message.text.strip():
        raise M3Error(f"{chat.model.info.name} gave no answer in words; ask again, or in other words")
    return answer.message.text.strip()
