"""Makes text from a model, a tool or a file safe for a terminal."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS, SOS, PM, APC: titles, clipboard, links
    r"|\x1b[ -/]*[0-~]"  # two-character sequences
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|[\x90\x9d\x9e\x9f][^\x07\x1b\x9c]*(?:\x07|\x9c|\x1b\\)?"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def clean(text: str, *, tab_size: int = 4) -> str:
    """The text as a person should see it: no control characters except newline, tabs as spaces.

    Escape sequences vanish whole, a line that a carriage return overwrites keeps its last state, characters that
    reorder text (bidirectional controls) are removed, lone surrogates become the replacement character.
    """
    text = _SEQUENCE.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    text = _SURROGATE.sub("\ufffd", text)
    return _CONTROL.sub("", text).expandtabs(tab_size)


def one_line(text: str, limit: int = 300) -> str:
    """The text on one line of at most `limit` characters; a cut has a mark.

    Lines are joined by a space, those without text vanish. Spaces within a line stay: two texts that a test compares
    may differ in nothing else.
    """
    joined = " ".join(line.strip() for line in clean(text[: limit * 8]).splitlines() if line.strip())
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"


def with_bounded_words(text: str, limit: int = 500) -> str:
    """The text with a newline after every `limit` characters without white space.

    Rich's folding of one word takes time that grows with the square of its length.
    """
    return re.sub(rf"(\S{{{limit}}})(?=\S)", r"\1\n", text)
