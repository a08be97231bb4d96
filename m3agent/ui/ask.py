"""Asks a person before a call happens: what would be done is shown whole, and nothing is done without a yes."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from m3agent.approval import Answer, Approver, Question
from m3agent.ui.clean import clean, with_bounded_words
from m3agent.ui.input import LineInput
from m3agent.ui.render import call_text, marked


def question(asked: Question) -> RenderableType:
    """The call and every argument of it, uncut."""
    parts: list[RenderableType] = [marked("?", "yellow", call_text(asked.tool, asked.arguments))]
    for name, value in asked.arguments.items():
        text = with_bounded_words(clean(value if isinstance(value, str) else repr(value)))
        if "\n" in text or name in ("command", "text", "old", "new", "content"):
            parts.append(Padding(Text(f"{name}:", "dim"), (0, 0, 0, 4), expand=False))
            parts.append(Padding(Text(text), (0, 0, 0, 6), expand=False))
    parts.append(Padding(Text(asked.rule, "dim"), (0, 0, 0, 4), expand=False))
    return Group(*parts)


def terminal_approver(console: Console, lines: LineInput, pause: Callable[[], None]) -> Approver:
    """An approver that asks at the terminal. `pause` takes the live view away before the question."""

    async def approve(asked: Question) -> Answer:
        pause()
        console.print(question(asked), markup=False, emoji=False, highlight=False)
        answer = await lines.read("    run it? [y]es, [n]o, or say what to do instead: ")
        word = (answer or "").strip()
        if word.lower() in ("y", "yes"):
            return Answer(accepted=True)
        return Answer(accepted=False, reason="" if word.lower() in ("", "n", "no") else word)

    return approve
