"""Makes text from a model, a tool or a file safe for a terminal."""

from __future__ import annotations

import re

_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movement
    r"|\x1b[\]PX^_][^\x07\x1b\x9c\n]*(?:\x07|\x9c|\x1b\\)?"  # OSC, DCS, SOS, PM, APC: titles, clipboard, links
    r"|\x1b[ -/]*[0-~]"  # two-character sequences
    r"|\x9b[0-?]*[ -/]*[@-~]"
    r"|[\x90\x98\x9d\x9e\x9f][^\x07\x1b\x9c\n]*(?:\x07|\x9c|\x1b\\)?"
)
"""A string that nobody ends stops at the end of its line: it must not hide what follows."""
_INVISIBLE = r"\u061c\u200b\u200e\u200f\u202a-\u202e\u2028\u2029\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e0fff"
"""What reorders text, or has no width and no meaning on a terminal."""
_CONTROL = re.compile(rf"[\x00-\x08\x0b-\x1f\x7f-\x9f{_INVISIBLE}]")
_JOINERS = re.compile(
    r"[\xad\u200d\u20dd-\u20e0\u20e2-\u20e4\ufe00-\ufe0f]|(?<=[\U0001f300-\U0001faff])[\U0001f3fb-\U0001f3ff]"
)
"""What changes the width of its neighbours on some terminals: joined emoji, their variants, frames and skin tones."""
_FLAG_LETTER = re.compile(r"[\U0001f1e6-\U0001f1ff]")
_MARKS = re.compile(r"([\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})[\u0300-\u036f"
                    r"\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+")  # fmt: skip
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_PICTURES = {**{code: chr(0x2400 + code) for code in range(0x20)}, 0x7F: "\u2421"}


def clean(text: str, *, tab_size: int = 4) -> str:
    """The text as a person should see it: no control characters except newline, tabs as spaces.

    Escape sequences vanish whole, a line that a carriage return overwrites keeps its last state, characters that
    reorder text (bidirectional controls) are removed, lone surrogates become the replacement character. Where terminals
    differ in how wide something is, a form stands in its place that has one width: joined emoji stand side by side,
    flags are two letters.
    """
    text = _SEQUENCE.sub("", text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    text = _SURROGATE.sub("\ufffd", text)
    return _of_one_width(_CONTROL.sub("", text)).expandtabs(tab_size)


def visible(text: str, *, tab_size: int = 4) -> str:
    """The text with nothing left out: what has no form of its own gets one, `␛` for Escape, `<202e>` for others.

    For what a person decides on. `clean` would hide what stands inside an escape sequence or before a carriage return,
    and a shell or a file would hold it all the same.
    """
    text = _CONTROL.sub(lambda found: _picture(found[0]), text.replace("\r\n", "\n"))
    return _of_one_width(_SURROGATE.sub("\ufffd", text)).expandtabs(tab_size)


def _picture(character: str) -> str:
    return _PICTURES.get(ord(character), f"<{ord(character):x}>")


def _of_one_width(text: str) -> str:
    if text.isascii():
        return text
    text = _FLAG_LETTER.sub(lambda found: chr(ord(found[0]) - 0x1F1E6 + ord("A")), _JOINERS.sub("", text))
    return _MARKS.sub(r"\1", text)


def one_line(text: str, limit: int = 300) -> str:
    """The text on one line of at most `limit` characters; a cut has a mark.

    Lines are joined by a space, those without text vanish. Spaces within a line stay: two texts that a test compares
    may differ in nothing else.
    """
    return _joined(clean(text[: limit * 8]), limit)


def one_visible_line(text: str, limit: int = 300) -> str:
    """As `one_line`, with nothing left out: for what a person decides on."""
    return _joined(visible(text[: limit * 8]), limit)


def _joined(text: str, limit: int) -> str:
    joined = " ".join(line.strip() for line in text.splitlines() if line.strip())
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"


def with_bounded_words(text: str, limit: int = 500) -> str:
    """The text with a newline after every `limit` characters without white space.

    Rich's folding of one word takes time that grows with the square of its length.
    """
    return re.sub(rf"(\S{{{limit}}})(?=\S)", r"\1\n", text)
