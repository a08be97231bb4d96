"""Asks a person before a call happens: what would be done is shown whole, and nothing is done without a yes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from m3agent.approval import Answer, Approver, Question
from m3agent.ui.clean import clean, one_line, with_bounded_words
from m3agent.ui.render import call_text, marked

if TYPE_CHECKING:
    from m3agent.ui.screen import Screen
    from m3agent.ui.terminal import TerminalView

_ON_THE_LINE = frozenset({"path", "symbol", "line", "pattern", "action"})
"""What the call's own line shows whole, if it is short."""
_SHORT = 60


def question(asked: Question) -> RenderableType:
    """The call and every argument of it, uncut."""
    parts: list[RenderableType] = [marked("?", "yellow", call_text(asked.tool, asked.arguments))]
    for name, value in _leaves(asked.arguments):
        text = with_bounded_words(clean(value))
        if "\n" in text or len(text) > _SHORT or name not in _ON_THE_LINE:
            parts.append(Padding(Text(f"{clean(name)}:", "dim"), (0, 0, 0, 4), expand=False))
            parts.append(Padding(Text(text), (0, 0, 0, 6), expand=False))
    parts.append(Padding(Text(asked.rule, "dim"), (0, 0, 0, 4), expand=False))
    return Group(*parts)


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Every value in the arguments with its name, `edits[0].old` for one inside a list."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _leaves(inner, f"{name}[{index}]")
    else:
        yield name, value if isinstance(value, str) else repr(value)


def screen_approver(screen: Screen, view: TerminalView) -> Approver:
    """An approver that asks at the screen. The live lines of the view go away before the question."""

    async def approve(asked: Question) -> Answer:
        view.close()
        screen.print(question(asked))
        word = await screen.ask()
        screen.print(marked("", "", Text(f"run it? {one_line(word)}", "dim")))
        if word.lower() in ("y", "yes"):
            view.resume()
            return Answer(accepted=True)
        return Answer(accepted=False, reason="" if word.lower() in ("n", "no") else word)

    return approve
