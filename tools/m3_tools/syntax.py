"""Syntax errors that a change brought into a source file."""

from __future__ import annotations

import ast
import dataclasses
import warnings
from collections import Counter

from tree_sitter import Node

from m3_tools.symbols import language_of, parse
from m3_tools.text import Text, shown

MAX_ERRORS = 3
_MAX_LINE_CHARS = 160
_MAX_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntaxProblem:
    """`text` is the line as the file has it; `message` is the parser's, where it has one."""

    line: int
    text: str
    message: str = "syntax error"


def new_syntax_errors(path: str, before: bytes, after: bytes) -> list[SyntaxProblem]:
    """The errors in `after` that `before` did not have, in order; none if the file's language is unknown."""
    language = language_of(path)
    if language is None or len(after) > _MAX_BYTES:
        return []
    before, after = _as_utf8(before), _as_utf8(after)
    rows = _error_rows(parse(language, after))
    problems = [SyntaxProblem(line=row + 1, text=_line(after, row)) for row in rows]
    old_rows = _error_rows(parse(language, before)) if rows else []
    if old_rows:  # errors on lines that read as before are old ones; a change cannot have made more than the rest
        known = Counter(_line(before, row) for row in old_rows)
        problems = [p for p in problems if not _take(known, p.text)][: max(0, len(rows) - len(old_rows))]
    if language == "python":
        precise = _python_error(after)
        if precise is not None and _python_error(before) is None:
            return [precise, *(p for p in problems if p.line > precise.line)][:MAX_ERRORS]
    return problems[:MAX_ERRORS]


def describe_errors(problems: list[SyntaxProblem]) -> str:
    """The errors for the model: a sentence and the lines."""
    first = problems[0]
    return "\n".join(
        [
            f"This made a syntax error at L{first.line}|: {first.message}",
            *(f"L{p.line}|{shown(p.text[:_MAX_LINE_CHARS])}" for p in problems),
        ]
    )


def _as_utf8(data: bytes) -> bytes:
    """The text as the parsers want it: UTF-8 without BOM, lines ended as the labels count them."""
    text = Text.decode(data).text
    return (text if "\n" in text else text.replace("\r", "\n")).encode("utf-8", "replace")


def _take(known: Counter[str], text: str) -> bool:
    known[text] -= 1
    return known[text] >= 0


def _line(data: bytes, row: int) -> str:
    lines = data.split(b"\n")
    return lines[row].decode("utf-8", "replace").rstrip() if row < len(lines) else ""


def _python_error(data: bytes) -> SyntaxProblem | None:
    """What Python itself says; it knows more than a grammar, and says it better."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(data)
    except SyntaxError as error:
        number = error.lineno or 1
        return SyntaxProblem(line=number, text=_line(data, number - 1), message=error.msg)
    except (ValueError, RecursionError, MemoryError):
        return None
    return None


def _error_rows(root: Node) -> list[int]:
    """The rows, from 0, of the innermost nodes that did not parse."""
    if not root.has_error:
        return []
    rows, pending = [], [root]
    while pending:
        node = pending.pop()
        if node.is_error or node.is_missing:
            rows.append(node.start_point.row)
        elif node.has_error:
            pending += node.children
    return sorted(rows)
