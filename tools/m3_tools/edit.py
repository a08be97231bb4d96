"""The `edit` tool: replace a piece of text that stands in a file once."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from m3_tools.base import Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.change import apply_change
from m3_tools.files import check_unchanged, read_bytes
from m3_tools.match import RUNGS, find, line_number
from m3_tools.paths import relative_name, resolve_for_writing
from m3_tools.text import Text, is_binary


class EditArgs(ToolArgs):
    path: str = Field(description="file, relative to the repository")
    old: str = Field(description="the text to replace, as it stands in the file, without labels")
    new: str = Field(description="the text to put there; empty to delete")
    replace_all: bool = Field(default=False, description="replace every occurrence")


class EditTool(Tool[EditArgs]):
    name: ClassVar[str] = "edit"
    description: ClassVar[str] = (
        "Replace old by new in a file. old must occur exactly once (or set replace_all); take enough lines to make "
        "it unique. Differences in line endings, trailing space or a uniform indentation are tolerated and "
        "reported. If old is not found, nothing changes and the nearest lines are shown. Refused if the file "
        "changed since it was read."
    )
    args_type: ClassVar[type[ToolArgs]] = EditArgs
    read_only: ClassVar[bool] = False

    async def run(self, args: EditArgs, context: ToolContext) -> ToolResult:
        path = resolve_for_writing(context, args.path)
        name = relative_name(context.root, path)
        if not args.old:
            raise ToolError("old is empty. Use write for a new file, or edit_line with insert to add lines.")
        if args.old == args.new:
            raise ToolError("old and new are the same; nothing to do.")
        data = read_bytes(path, name)
        check_unchanged(context, path, data, name)
        if is_binary(data):
            raise ToolError(f"{name} is a binary file; edit works on text.")
        source = Text.decode(data)
        rung, found = find(source, args.old, args.new, every=args.replace_all)
        after = source.replace([(r.start, r.end, r.new) for r in found])
        lines = source.lines()
        first, last = line_number(lines, found[0].start), line_number(lines, max(found[0].start, found[0].end - 1))
        where = f"L{first}|" if first == last else f"L{first}| to L{last}|"
        said = (
            f"{name}: replaced {where}"
            if len(found) == 1
            else f"{name}: replaced {len(found)} occurrences, first {where}"
        )
        if rung != RUNGS[0]:
            said += f"; old matched only when {rung} was ignored"
        return apply_change(context, path, name, data, after, said)
