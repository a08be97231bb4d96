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
_OVERWRITTEN = re.compile(r"[^\n\r]*\r(?!\n)")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069\ufeff]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def clean(text: str, *, tab_size: int = 4) -> str:
    """The text as a person should see it: no control characters except newline, tabs as spaces.

    Escape sequences vanish whole, a line that a carriage return overwrites keeps its last state, characters that
    reorder text (bidirectional controls) are removed, lone surrogates become the replacement character.
    """
    text = _SEQUENCE.sub("", text).replace("\r\n", "\n")
    text = _OVERWRITTEN.sub("", text)
    text = _SURROGATE.sub("\ufffd", text)
    return _CONTROL.sub("", text).expandtabs(tab_size)


def one_line(text: str, limit: int = 0) -> str:
    """The text on one line, runs of white space joined, cut to `limit` characters with a mark (0: uncut)."""
    joined = " ".join(clean(text[: limit * 8] if limit else text).split())
    return joined if not limit or len(joined) <= limit else joined[: limit - 1] + "…"
