"""The `edit_line` tool: replace, insert after, or delete one line, named by the label that `read` shows."""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from m3_tools.base import Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.change import apply_change
from m3_tools.files import check_unchanged, read_bytes
from m3_tools.labels import without_labels
from m3_tools.paths import relative_name, resolve_for_writing
from m3_tools.text import Text, is_binary, with_ending

_LABEL = re.compile(r"\s*L?(\d{1,9})\|?\s*")


class EditLineArgs(ToolArgs):
    path: str = Field(description="file, relative to the repository")
    action: Literal["replace", "insert", "delete"] = Field(description="insert puts text after the line")
    line: str = Field(description="label as read shows it, L34|; L0| is the start of the file")
    text: str = Field(default="", description="the new line or lines, without a final newline; empty for delete")

    @field_validator("line", mode="before")
    @classmethod
    def _number_as_label(cls, value: Any) -> Any:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class EditLineTool(Tool[EditLineArgs]):
    name: ClassVar[str] = "edit_line"
    description: ClassVar[str] = (
        "Change one line of a file by its label: replace it with text, insert text after it, or delete it. text may "
        "be several lines. Labels are those of the last read; lines below an insertion or deletion move. Refused if "
        "the file changed since it was read."
    )
    args_type: ClassVar[type[ToolArgs]] = EditLineArgs
    read_only: ClassVar[bool] = False

    async def run(self, args: EditLineArgs, context: ToolContext) -> ToolResult:
        path = resolve_for_writing(context, args.path)
        name = relative_name(context.root, path)
        data = read_bytes(path, name)
        check_unchanged(context, path, data, name)
        if is_binary(data):
            raise ToolError(f"{name} is a binary file; edit_line works on text.")
        source = Text.decode(data)
        number = _line_number(args, len(source.lines()), name)
        text = without_labels(args.text).removesuffix("\n").removesuffix("\r")
        edits, moved = edit_line(source, args.action, number, text)
        return apply_change(context, path, name, data, source.replace(edits), _said(name, args.action, number, moved))


def edit_line(source: Text, action: str, number: int, text: str) -> tuple[list[tuple[int, int, str]], int]:
    """The edits of `source.text` that do `action` at line `number` (0: before the first), and by how much later lines
    move.
    """
    lines = source.lines()
    num_new = len(re.findall(r"\r\n|\r|\n", text)) + 1
    if action == "insert" and number == 0:
        ending = source.ending_at(0)
        return [(0, 0, with_ending(text, ending) + ending)], num_new
    line = lines[number - 1]
    ending = source.ending_at(line.start)
    new = with_ending(text, ending)
    if action == "delete":
        return [(line.start, line.end + len(line.ending), "")], -1
    if action == "replace":
        return [(line.start, line.end, new)], num_new - 1
    after = line.end + len(line.ending)
    return [(after, after, new + ending if line.ending else ending + new)], num_new


def _line_number(args: EditLineArgs, num_lines: int, name: str) -> int:
    match = _LABEL.fullmatch(args.line)
    if match is None:
        raise ToolError(f"{args.line!r} is not a line label. Give it as read shows it, for instance L34|.")
    number = int(match.group(1))
    if args.action == "delete" and args.text:
        raise ToolError("delete takes no text. To change the line, use replace.")
    lowest = 0 if args.action == "insert" else 1
    if not lowest <= number <= num_lines:
        raise ToolError(f"{name} has {num_lines} lines; there is no L{number}| to {args.action}. Read it again.")
    return number


def _said(name: str, action: str, number: int, moved: int) -> str:
    done = {"replace": f"replaced L{number}|", "delete": f"deleted L{number}|", "insert": f"inserted after L{number}|"}[
        action
    ]
    return f"{name}: {done}" + (f"; lines below moved by {moved:+d}" if moved else "")
