"""The `glob` tool: files by name."""

from __future__ import annotations

import heapq
import itertools
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from pathspec import GitIgnoreSpec
from pydantic import Field

from m3_tools.base import TextBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.paths import printable, resolve_folder
from m3_tools.ripgrep import by_folder, names_below

MAX_FILES = 1000
MAX_ALTERNATIVES = 100
MAX_LEFT_OUT = 500
_PLAIN_NAME = re.compile(r"[\w*?-]+(?:\.[\w*?-]+)+")
"""A name with a suffix, which ripgrep and .gitignore read alike."""


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
        matches = path_matcher(args.pattern)
        # What ripgrep leaves out need not come here. Files of that name go before folders of that name.
        name_glob = posixpath.basename(args.pattern.strip())
        names: list[str] = []
        others = _other_folders(context.root, args.pattern) if folder == context.root else []
        if _PLAIN_NAME.fullmatch(name_glob):
            wanted = [f"--type-add=wanted:{name_glob}", "--type=wanted"]
            names = await _matching(context, folder, matches, args, [*wanted, *others])
        if not names:
            names = await _matching(context, folder, matches, args, others)
        if not names:
            hint = "" if args.include_ignored else " (ignored files were not looked at)"
            return ToolResult(text=f"No file in {printable(args.path)} matches {printable(args.pattern)}{hint}.")
        more = [f"({len(names) - MAX_FILES:,} more files)"] if len(names) > MAX_FILES else []
        text = "\n".join([*map(printable, _first(names)), *more])
        return ToolResult(text=text, display=(TextBlock(text=text, title=f"{len(names)} files"),))


def _first(names: Sequence[str]) -> list[str]:
    """The names that are listed, in their order."""
    return [key.replace("\0", "/") for key in heapq.nsmallest(MAX_FILES, map(by_folder, names))]


def _other_folders(root: Path, pattern: str) -> list[str]:
    """Options that keep ripgrep out of the folders beside the one that the pattern begins with, if it names one."""
    first, slash, rest = pattern.strip().removeprefix("./").removeprefix("/").partition("/")
    if not slash or not rest or not re.fullmatch(r"[\w.-]+", first) or first == "..":
        return []
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False) and entry.name != first]
    return [f"--glob=!/{name}/" for name in names if re.fullmatch(r"[\w.-]+", name)][:MAX_LEFT_OUT]


async def _matching(
    context: ToolContext, folder: Path, matches: GitIgnoreSpec, args: GlobArgs, options: Sequence[str]
) -> list[str]:
    fits = _fitting(matches)
    names = await names_below(context, folder, options, include_ignored=args.include_ignored)
    if folder == context.root:
        return list(filter(fits, names))
    base = folder.relative_to(context.root).as_posix() + "/"
    return [name for name in names if fits(name.removeprefix(base))]


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
        return GitIgnoreSpec.from_lines(itertools.islice(_alternatives(pattern.removeprefix("./")), MAX_ALTERNATIVES))
    except ValueError as error:
        raise ToolError(f"{pattern!r} is not a file pattern: {error}") from None


def _alternatives(pattern: str) -> Iterator[str]:
    """What a pattern with braces stands for, `*.{ts,tsx}` for two: .gitignore has none, but models write them."""
    found = re.search(r"\{([^{}]*,[^{}]*)\}", pattern)
    if found is None:
        yield pattern
        return
    for choice in found.group(1).split(","):
        yield from _alternatives(pattern[: found.start()] + choice + pattern[found.end() :])
