"""Put changed bytes into the work tree and say what happened: the same end for edit, edit_line and write."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from m3_tools.atomic import write_atomic
from m3_tools.base import DiffBlock, ToolContext, ToolError, ToolResult
from m3_tools.files import read_bytes, remember
from m3_tools.secret import MARK
from m3_tools.syntax import describe_errors, new_syntax_errors
from m3_tools.text import Text, is_binary, shown


def apply_change(
    context: ToolContext, path: Path, name: str, before: bytes | None, after: bytes, said: str
) -> ToolResult:
    """Write `after` and report `said`, the diff, and a syntax error if the change brought one.

    `before` is None for a file that is new. Raises ToolError if the change changes nothing.
    """
    if before == after:
        raise ToolError(f"Nothing was changed: {name} already reads like that.")
    if (mark := MARK.encode()) in after and mark not in (before or b""):
        raise ToolError(f"Not changed: the text holds {MARK}…], which stands for a secret. Edit the lines around it.")
    _refuse_if_changed(path, name, before)
    write_atomic(path, after)
    remember(context, path, after)
    errors = new_syntax_errors(name, before or b"", after)
    text = f"{said}\n{describe_errors(errors)}" if errors else said
    return ToolResult(text=text, display=(DiffBlock(path=name, diff=unified_diff(name, before, after)),))


def _refuse_if_changed(path: Path, name: str, before: bytes | None) -> None:
    """To find where an edit goes can take a while, in which a person saves the file."""
    if before is None and os.path.lexists(path):
        raise ToolError(f"{name} was made by somebody else just now; nothing was written. Read it first.")
    if before is not None and read_bytes(path, name) != before:
        raise ToolError(f"{name} changed just now; nothing was written. Read it again, then repeat the edit.")


def unified_diff(name: str, before: bytes | None, after: bytes | None) -> str:
    """The change for a person to read; not for patch, since control characters are shown as symbols. None is a file
    that does not exist.
    """
    if is_binary(before or b"") or is_binary(after or b""):
        return "(binary)"
    old_name = "/dev/null" if before is None else f"a/{name}"
    new_name = "/dev/null" if after is None else f"b/{name}"
    rows = difflib.unified_diff(_rows(before or b""), _rows(after or b""), old_name, new_name, lineterm="")
    return "\n".join(rows)


def _rows(data: bytes) -> list[str]:
    source = Text.decode(data)
    lines = source.lines()
    rows = [shown(source.text[line.start : line.end]) + ("␍" if line.ending == "\r\n" else "") for line in lines]
    if lines and not lines[-1].ending:
        rows[-1] += "\n\\ No newline at end of file"
    return rows
