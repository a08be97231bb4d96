"""How a terminal shows a picture, told from its environment alone: nothing is asked of the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Graphics = Literal["kitty", "iterm", "sixel", "blocks", "off"]
"""Three protocols, half blocks of characters in colour, or nothing."""
_BY_PROGRAM: dict[str, Graphics] = {
    "iterm.app": "iterm", "wezterm": "iterm", "mintty": "iterm", "ghostty": "kitty",
}  # fmt: skip
_BY_TERM: dict[str, Graphics] = {
    "xterm-kitty": "kitty", "xterm-ghostty": "kitty", "foot": "sixel", "foot-extra": "sixel", "mlterm": "sixel",
    "contour": "sixel", "yaft-256color": "sixel",
}  # fmt: skip


def detect(environment: Mapping[str, str]) -> Graphics:
    """What this terminal is known to show. In a multiplexer, which passes no pictures on, half blocks."""
    term = environment.get("TERM", "").lower()
    if environment.get("NO_COLOR") or term in ("", "dumb"):
        return "off"
    if environment.get("TMUX") or environment.get("STY") or term.startswith(("screen", "tmux")):
        return "blocks"
    if environment.get("KITTY_WINDOW_ID"):
        return "kitty"
    program = environment.get("TERM_PROGRAM", "") or environment.get("LC_TERMINAL", "").replace("iTerm2", "iTerm.app")
    return _BY_PROGRAM.get(program.lower()) or _BY_TERM.get(term) or "blocks"
