"""The `glob` tool: files by name."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import ClassVar

from pathspec import GitIgnoreSpec
from pydantic import Field

from m3_tools.base import TextBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.paths import printable, resolve_folder
from m3_tools.ripgrep import by_folder, names_below

MAX_FILES = 1000


class GlobArgs(ToolArgs):
    pattern: str = Field(description="as in .gitignore: *.py at any depth, src/**/*.ts from the root")
    path: str = Field(default=".", description="folder to search, relative to the repository")
    include_ignored: bool = Field(default=False, description="also files that .gitignore leaves out")


class GlobTool(Tool[GlobArgs]):
    name: ClassVar[str] = "glob"
    description: ClassVar[str] = (
        "List files whose path matches a pattern, sorted by path. Ignored files are left out unless asked for. "
        f"At most {MAX_FILES} are listed; more are counted."
    )
    args_type: ClassVar[type[ToolArgs]] = GlobArgs

    async def run(self, args: GlobArgs, context: ToolContext) -> ToolResult:
        folder = resolve_folder(context, args.path)
        fits = _fitting(path_matcher(args.pattern))
        base = "" if folder == context.root else folder.relative_to(context.root).as_posix() + "/"
        listed = await names_below(context, folder, include_ignored=args.include_ignored)
        names = [name for name in listed if fits(name.removeprefix(base))]
        if not names:
            hint = "" if args.include_ignored else " (ignored files were not looked at)"
            return ToolResult(text=f"No file in {printable(args.path)} matches {printable(args.pattern)}{hint}.")
        more = [f"({len(names) - MAX_FILES:,} more files)"] if len(names) > MAX_FILES else []
        text = "\n".join([*map(printable, heapq.nsmallest(MAX_FILES, names, by_folder)), *more])
        return ToolResult(text=text, display=(TextBlock(text=text, title=f"{len(names)} files"),))


def _fitting(spec: GitIgnoreSpec) -> Callable[[str], object]:
    """The judgement of `spec.match_file`, which is slow where there are many names."""
    expressions = [pattern.regex.match for pattern in spec.patterns if pattern.regex is not None and pattern.include]
    if len(expressions) < len(list(spec.patterns)):
        return spec.match_file
    return expressions[0] if len(expressions) == 1 else lambda name: any(match(name) for match in expressions)


def path_matcher(pattern: str) -> GitIgnoreSpec:
    """A matcher of relative paths for one pattern in the syntax of .gitignore. Raises ToolError if it means nothing."""
    if not pattern.strip() or pattern.lstrip().startswith(("#", "!")) or "\0" in pattern:
        raise ToolError(f"{pattern!r} is not a file pattern. Examples: *.py, src/**/*.ts, tests/")
    try:
        return GitIgnoreSpec.from_lines([pattern.removeprefix("./")])
    except ValueError as error:
        raise ToolError(f"{pattern!r} is not a file pattern: {error}") from None
