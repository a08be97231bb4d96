"""A unified diff as coloured text: line numbers, the sign, and the code in its own language's colours."""

from __future__ import annotations

import functools
import re

from rich.syntax import Syntax
from rich.text import Text

from m3agent.ui.clean import clean

MAX_DIFF_LINES = 80
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_SIGNS = {"+": "bold green", "-": "bold red", " ": "dim"}
"""Styles of number and sign. The code has no background: one that fits dark terminals hides text on light ones."""


def diff_text(path: str, diff: str) -> Text:
    """The hunks of one file's diff, without its headers. Long diffs are cut, and the number of lines is said."""
    lines = diff.split("\n")
    rows: list[Text] = []
    old = new = 0
    inside = False
    for line in lines:
        if hunk := _HUNK.match(line):
            if inside:
                rows.append(Text("     ⋮", "dim"))
            old, new, inside = int(hunk[1]), int(hunk[2]), True
        elif inside and line[:1] in _SIGNS and line:
            sign = line[0]
            rows.append(_row(path, old if sign == "-" else new, sign, line[1:]))
            old += sign != "+"
            new += sign != "-"
        elif inside and line.startswith("\\"):
            rows.append(Text("       no newline at the end of the file", "dim"))
    hidden = len(rows) - MAX_DIFF_LINES
    if hidden > 0:
        rows = [*rows[:MAX_DIFF_LINES], Text(f"     … {hidden} more lines", "dim")]
    return Text("\n").join(rows)


def _row(path: str, number: int, sign: str, code: str) -> Text:
    return Text(f"{number:>4} {sign} ", _SIGNS[sign]).append_text(_highlight(_lexer(path, ""), clean(code[:500])))


@functools.lru_cache(maxsize=64)
def _lexer(path: str, code: str) -> str:
    return Syntax.guess_lexer(path, code)


def _highlight(lexer: str, code: str) -> Text:
    text = Syntax("", lexer, theme="ansi_dark", background_color="default").highlight(code)
    text.rstrip()
    leading = len(code) - len(code.lstrip())
    kept = len(text.plain) - len(text.plain.lstrip())
    return Text(" " * (leading - kept)).append_text(text) if kept < leading else text
