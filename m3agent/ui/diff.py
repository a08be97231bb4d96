"""A unified diff as coloured text: line numbers, the sign, and the code in its own language's colours."""

from __future__ import annotations

import re

from rich.text import Text

from m3agent.ui.clean import visible
from m3agent.ui.code import highlight, lexer_of_file

MAX_DIFF_LINES = 80
MAX_CODE_CHARACTERS = 500
_HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_SIGNS = {"+": "good.strong", "-": "bad.strong", " ": "quiet"}
"""Styles of number and sign. The code has no background: one that fits dark terminals hides text on light ones."""


def diff_text(path: str, diff: str) -> Text:
    """The hunks of one file's diff, without its headers. Long diffs are cut, and the number of lines is said."""
    lines = diff.split("\n")
    if all(line.endswith("\r") for line in lines if line[:1] in _SIGNS and not line.startswith(("+++", "---"))):
        lines = [line.removesuffix("\r") for line in lines]  # said of some lines only, it would be news
    rows: list[Text] = []
    old = new = 0
    inside = False
    for line in lines:
        if hunk := _HUNK.match(line):
            if inside:
                rows.append(Text("     ⋮", "quiet"))
            old, new, inside = int(hunk[1]), int(hunk[2]), True
        elif inside and line[:1] in _SIGNS and line:
            sign = line[0]
            rows.append(_row(path, old if sign == "-" else new, sign, line[1:]))
            old += sign != "+"
            new += sign != "-"
        elif inside and line.startswith("\\"):
            rows.append(Text("       no newline at the end of the file", "quiet"))
    hidden = len(rows) - MAX_DIFF_LINES
    if hidden > 0:
        rows = [*rows[:MAX_DIFF_LINES], Text(f"     … {hidden} more lines", "quiet")]
    return Text("\n").join(rows)


def _row(path: str, number: int, sign: str, code: str) -> Text:
    cut = "…" if len(code) > MAX_CODE_CHARACTERS else ""
    code = visible(code[:MAX_CODE_CHARACTERS]) + cut
    return Text(f"{number:>4} {sign} ", _SIGNS[sign]).append_text(highlight(code, lexer_of_file(path)))
