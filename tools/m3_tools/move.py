"""The `move` tool: give one file another name."""

from __future__ import annotations

import os
from typing import ClassVar

from pydantic import Field

from m3_tools.base import TextBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.delete import refuse_symlink
from m3_tools.files import check_unchanged, read_bytes, remember
from m3_tools.paths import relative_name, resolve_for_writing


class MoveArgs(ToolArgs):
    path: str = Field(description="file, relative to the repository")
    to: str = Field(description="its new path; nothing may be there yet")


class MoveTool(Tool[MoveArgs]):
    name: ClassVar[str] = "move"
    description: ClassVar[str] = (
        "Move or rename one file; folders on the way are made, its bytes and mode stay. Imports and other mentions of "
        "the old name are not changed: find them with grep."
    )
    args_type: ClassVar[type[ToolArgs]] = MoveArgs
    read_only: ClassVar[bool] = False

    async def run(self, args: MoveArgs, context: ToolContext) -> ToolResult:
        path, target = resolve_for_writing(context, args.path), resolve_for_writing(context, args.to)
        refuse_symlink(context, args.path)
        name, new_name = relative_name(context.root, path), relative_name(context.root, target)
        data = read_bytes(path, name)
        check_unchanged(context, path, data, name)
        if os.path.lexists(target):
            kind = "a folder; give the whole new path" if target.is_dir() else "there already; nothing was moved"
            raise ToolError(f"{new_name} is {kind}.")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise ToolError(f"{new_name} cannot be made: a part of its path is a file.") from None
        os.rename(path, target)
        if context.read_hashes.pop(path, None) is not None:
            remember(context, target, data)
        text = f"{name}: moved to {new_name}"
        return ToolResult(text=text, display=(TextBlock(text=text, title="move"),))
