"""Long pasted texts: a draft shows a short name for each, and what is sent holds the whole."""

from __future__ import annotations

import re

MAX_SHOWN_LINES = 8
MAX_SHOWN_CHARACTERS = 800
_NAME = re.compile(r"\[pasted [\d,]+ (?:lines|characters)(?: #\d+)?\]")


class Pastes:
    """The pasted texts of one chat by their names."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def add(self, text: str) -> str:
        """What to put into the draft for a pasted text: itself if it is short, else a name for it."""
        text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
        lines = text.count("\n") + (not text.endswith("\n"))
        if lines <= MAX_SHOWN_LINES and len(text) <= MAX_SHOWN_CHARACTERS:
            return text
        size = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        name, number = f"[pasted {size}]", 1
        while self._texts.get(name, text) != text:
            number += 1
            name = f"[pasted {size} #{number}]"
        self._texts[name] = text
        return name

    def expand(self, draft: str) -> str:
        """The draft with every name replaced by its text. A name inside a pasted text stays as it is."""
        return _NAME.sub(lambda found: self._texts.get(found[0], found[0]), draft)
