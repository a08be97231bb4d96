"""What the names of styles look like: for dark and for light terminals, for those who need contrast, without colour.

Whatever draws says what a thing is (`quiet`, `good`, `accent`); its colour is decided here alone. Backgrounds are left
to the terminal, and colours are its own sixteen where they can be read on both grounds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import get_args

from rich.console import Console
from rich.theme import Theme

from m3agent.settings import ThemeName

THEMES: tuple[ThemeName, ...] = get_args(ThemeName)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """`styles` are Rich's by the names that the views use, `draft` those of the lines that a person types into."""

    styles: Mapping[str, str]
    draft: Mapping[str, str]
    colour: bool = True


def _styles(
    *, quiet: str, accent: str, good: str, bad: str, warn: str, thought: str, plan: str, code: Mapping[str, str]
) -> dict[str, str]:
    """Every name; most of them follow from a few."""
    inline = code["keyword"]
    return {
        "quiet": quiet,
        "strong": "bold",
        "slanted": "italic",
        "accent": accent,
        "accent.strong": f"bold {accent}",
        "good": good,
        "good.strong": f"bold {good}",
        "bad": bad,
        "bad.strong": f"bold {bad}",
        "warn": warn,
        "warn.strong": f"bold {warn}",
        "thought": thought,
        "aside": plan,
        "mode.plan": plan,
        "mode.ask": good,
        "mode.edit": warn,
        "mode.auto": bad,
        "reads": plan,
        "thinks": thought,
        "runs": warn,
        **{f"code.{name}": style for name, style in code.items()},
        "markdown.code": inline,
        "markdown.code_block": "none",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold italic",
        "markdown.h5": "italic",
        "markdown.h6": quiet,
        "markdown.h7": quiet,
        "markdown.link": accent,
        "markdown.link_url": f"underline {quiet}".removesuffix(" none"),
        "markdown.block_quote": quiet,
        "markdown.list": "none",
        "markdown.item.bullet": accent,
        "markdown.item.number": accent,
        "markdown.hr": quiet,
        "markdown.table.border": quiet,
        "markdown.table.header": "bold",
    }


def _draft(*, prompt: str, question: str, meta: str) -> dict[str, str]:
    return {
        "prompt": prompt,
        "question": question,
        "completion-menu": "noreverse",
        "completion-menu.completion": "noreverse",
        "completion-menu.completion.current": "reverse",
        "completion-menu.meta.completion": f"noreverse {meta}",
        "completion-menu.meta.completion.current": "reverse",
    }


_DARK = Look(
    styles=_styles(
        quiet="dim", accent="cyan", good="green", bad="red", warn="yellow", thought="dim italic", plan="bright_blue",
        code={"keyword": "bright_blue", "string": "green", "comment": "dim italic", "number": "cyan",
              "name": "bright_cyan", "plain": "none"},
    ),
    draft=_draft(prompt="bold ansicyan", question="bold ansiyellow", meta="ansibrightblack"),
)  # fmt: skip
_LIGHT = Look(
    styles=_styles(
        quiet="color(240)", accent="blue", good="color(22)", bad="color(124)", warn="color(94)",
        thought="italic color(240)", plan="color(19)",
        code={"keyword": "color(19)", "string": "color(22)", "comment": "italic color(240)", "number": "color(94)",
              "name": "color(54)", "plain": "none"},
    ),
    draft=_draft(prompt="bold ansiblue", question="bold #875f00", meta="#585858"),
)  # fmt: skip
_CONTRAST = Look(
    styles=_styles(
        quiet="none", accent="bold", good="bold", bad="bold reverse", warn="bold underline", thought="italic",
        plan="bold",
        code={"keyword": "bold", "string": "none", "comment": "italic", "number": "none", "name": "none",
              "plain": "none"},
    ),
    draft=_draft(prompt="bold", question="bold underline", meta=""),
)  # fmt: skip
LOOKS: Mapping[ThemeName, Look] = {
    "dark": _DARK,
    "light": _LIGHT,
    "contrast": _CONTRAST,
    "none": dataclasses.replace(_DARK, colour=False),
}


def use_theme(console: Console, name: ThemeName) -> None:
    """Let the console draw with this theme from now on."""
    look = LOOKS[name]
    console.push_theme(Theme(look.styles))
    console.no_color = not look.colour
