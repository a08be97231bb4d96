"""The `delete` tool: one file, if what it holds cannot be lost by that."""

from __future__ import annotations

import os
from typing import ClassVar

from pydantic import Field

from m3_tools.base import DiffBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.change import unified_diff
from m3_tools.files import check_unchanged, read_bytes
from m3_tools.git import git_name, is_committed
from m3_tools.paths import printable, relative_name, resolve_for_writing


class DeleteArgs(ToolArgs):
    path: str = Field(description="file, relative to the repository")


class DeleteTool(Tool[DeleteArgs]):
    name: ClassVar[str] = "delete"
    description: ClassVar[str] = (
        "Delete one file. It must be as the last commit has it, or have been read and not changed since. Folders and "
        "symlinks are refused."
    )
    args_type: ClassVar[type[ToolArgs]] = DeleteArgs
    read_only: ClassVar[bool] = False

    async def run(self, args: DeleteArgs, context: ToolContext) -> ToolResult:
        path = resolve_for_writing(context, args.path)
        refuse_symlink(context, args.path)
        name = relative_name(context.root, path)
        data = read_bytes(path, name)
        check_unchanged(context, path, data, name)
        if path not in context.read_hashes and not await is_committed(context, git_name(context, path)):
            raise ToolError(
                f"{name} is not in the last commit as it is. Read it first, so that nothing is lost unseen."
            )
        os.unlink(path)
        context.read_hashes.pop(path, None)
        block = DiffBlock(path=name, diff=unified_diff(name, data, None))
        return ToolResult(text=f"{name}: deleted", display=(block,))


def refuse_symlink(context: ToolContext, path: str) -> None:
    """Raise ToolError if the name itself is a link: what is meant, the link or its target, would be a guess."""
    if os.path.islink(os.path.join(context.root, path)):
        raise ToolError(f"{printable(path)} is a symlink. Name the file that it points to, or use shell for the link.")
