"""A file's bytes as text that can be changed in places without touching the rest.

`Text.decode` chooses an encoding that gives the bytes back unchanged, so a position in the text is a position in the
bytes, and `replace` encodes nothing but the new piece. Lines end at LF or CRLF; CR alone ends a line only in a file
that has no LF at all.
"""

from __future__ import annotations

import codecs
import dataclasses
import re
from collections.abc import Sequence

from m3_tools.base import ToolError

_BOMS = (
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CONTROL = bytes(b for b in range(32) if b not in b"\t\n\r\f\b\x1b")
_SNIFF_BYTES = 8192


@dataclasses.dataclass(frozen=True)
class Line:
    """One line: `text[start:end]` is its content, `ending` what follows it ("" for an unterminated last line)."""

    start: int
    end: int
    ending: str


@dataclasses.dataclass(frozen=True)
class Text:
    """`data` is `bom` followed by `text` in `encoding`, exactly."""

    data: bytes
    text: str
    encoding: str
    errors: str
    bom: bytes

    @classmethod
    def decode(cls, data: bytes) -> Text:
        """The bytes as text. Always succeeds, and always gives the same bytes back."""
        for bom, encoding in _BOMS:
            if data.startswith(bom):
                decoded = cls._attempt(
                    data, encoding, "surrogateescape" if encoding == "utf-8" else "surrogatepass", bom
                )
                if decoded is not None:
                    return decoded
        strict = cls._attempt(data, "utf-8", "strict", b"")
        if strict is not None:
            return strict
        tolerant = data.decode("utf-8", "surrogateescape")
        num_invalid = sum("\udc80" <= c <= "\udcff" for c in tolerant)
        num_valid = sum(c > "\x7f" for c in tolerant) - num_invalid
        if num_valid >= num_invalid:
            return cls(data, tolerant, "utf-8", "surrogateescape", b"")
        return cls._attempt(data, "cp1252", "strict", b"") or cls(
            data, data.decode("latin-1"), "latin-1", "strict", b""
        )

    @classmethod
    def _attempt(cls, data: bytes, encoding: str, errors: str, bom: bytes) -> Text | None:
        try:
            text = data[len(bom) :].decode(encoding, errors)
            same = text.encode(encoding, errors) == data[len(bom) :]
        except UnicodeError:
            return None
        return cls(data, text, encoding, errors, bom) if same else None

    def replace(self, edits: Sequence[tuple[int, int, str]]) -> bytes:
        """The bytes with each `text[start:end]` replaced; edits are in order and do not overlap.

        Raises ToolError if a new piece has characters that the file's encoding lacks.
        """
        result, position_chars, position_bytes = [self.data[: len(self.bom)]], 0, len(self.bom)
        for start, end, new in edits:
            gap = len(self._encode(self.text[position_chars:start]))
            result.append(self.data[position_bytes : position_bytes + gap])
            try:
                result.append(new.encode(self.encoding))
            except UnicodeEncodeError as error:
                bad = new[error.start]
                raise ToolError(
                    f"The file is {self.encoding} text, which has no {bad!r}. Use other characters."
                ) from None
            position_bytes += gap + len(self._encode(self.text[start:end]))
            position_chars = end
        result.append(self.data[position_bytes:])
        return b"".join(result)

    def _encode(self, piece: str) -> bytes:
        return piece.encode(self.encoding, self.errors)

    def lines(self) -> list[Line]:
        """The lines in order; an empty text has none."""
        return split_lines(self.text)

    def ending_at(self, position: int) -> str:
        """The line ending in use where `position` lies: that of its line, else of the line before, else LF."""
        before = ""
        for line in self.lines():
            if line.ending and position <= line.end:
                return line.ending
            before = line.ending or before
        return before or "\n"


def split_lines(text: str) -> list[Line]:
    """The lines of `text`. CR alone is an ending only where there is no LF."""
    pattern = r"\r\n|\n" if "\n" in text else r"\r"
    lines, start = [], 0
    for match in re.finditer(pattern, text):
        lines.append(Line(start, match.start(), match.group()))
        start = match.end()
    if start < len(text):
        lines.append(Line(start, len(text), ""))
    return lines


def with_ending(text: str, ending: str) -> str:
    """`text` with its line ends written as `ending`."""
    return re.sub(r"\r\n|\r|\n", ending, text) if ending != "\n" or "\r" in text else text


def is_binary(data: bytes) -> bool:
    """Whether the head of a file is no text: over a tenth is control bytes and no BOM explains them."""
    head = data[:_SNIFF_BYTES]
    if any(head.startswith(bom) for bom, _ in _BOMS):
        return False
    return len(head) - len(head.translate(None, _CONTROL)) > max(1, len(head) // 10)


def shown(text: str) -> str:
    """`text` for the model: valid Unicode without control characters other than the tab."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(_shown(c) for c in text)


def _shown(c: str) -> str:
    if c == "\t" or (c >= " " and not "\x7f" <= c <= "\x9f" and not "\ud800" <= c <= "\udfff"):
        return c
    return chr(0x2400 + ord(c)) if c < " " else "\ufffd"
