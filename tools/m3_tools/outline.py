"""The `outline` tool: the definitions of a file, or of every source file in a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from m3_tools.base import TextBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.files import read_bytes
from m3_tools.paths import relative_name, resolve_for_reading, shown_name
from m3_tools.ripgrep import list_files
from m3_tools.symbols import Definition, definitions, language_of
from m3_tools.text import shown

MAX_CHARS = 60_000
_MAX_FILE_BYTES = 2 * 2**20
_MAX_REMEMBERED = 20_000
_remembered: dict[tuple[str, bytes], tuple[str, ...]] = {}
"""Outlines by language and digest of the file. Parsing takes a hundred times as long as reading."""


class OutlineArgs(ToolArgs):
    path: str = Field(default=".", description="file or folder, relative to the repository")


class OutlineTool(Tool[OutlineArgs]):
    name: ClassVar[str] = "outline"
    description: ClassVar[str] = (
        "List the classes, functions and methods of a file or of all source files in a folder, each with its line "
        "label. Python, JavaScript, TypeScript, Go, Rust, Java, C and C++. Ignored files are left out. "
        f"At most {MAX_CHARS} characters; a folder too large for that says where it stopped."
    )
    args_type: ClassVar[type[ToolArgs]] = OutlineArgs

    async def run(self, args: OutlineArgs, context: ToolContext) -> ToolResult:
        path = resolve_for_reading(context, args.path)
        name = shown_name(context, path)
        if not path.is_dir():
            data = read_bytes(path, name)
            if language_of(name) is None:
                raise ToolError(f"{name} is of a language without a grammar here; use read or grep.")
            lines = outline_of(name, data)
            text = "\n".join([name, *(lines or ["(no definitions)"])])
        else:
            text = await _folder_outline(context, path)
        return ToolResult(text=text, display=(TextBlock(text=text, title=f"outline of {name}"),))


async def _folder_outline(context: ToolContext, folder: Path) -> str:
    listed = [f for f in await list_files(context, folder) if language_of(f.name) is not None]
    files = [f for f in listed if not context.secrets.guards(relative_name(context.root, f))]
    if not files:
        return f"{relative_name(context.root, folder)}: no source files that can be outlined"
    parts: list[str] = []
    num_chars = 0
    for index, file in enumerate(files):
        name = relative_name(context.root, file)
        try:
            lines = outline_of(name, read_bytes(file, name, limit=_MAX_FILE_BYTES))
        except ToolError as error:
            lines = (f"({error})",)
        part = "\n".join([name, *lines])
        num_chars += len(part) + 1
        if num_chars > MAX_CHARS and parts:
            parts.append(
                f"(stopped before {name}: {len(files) - index} of {len(files)} files are left; outline a subfolder)"
            )
            break
        parts.append(part)
    return "\n".join(parts)


def outline_of(path: str, data: bytes) -> tuple[str, ...]:
    """The outline of one file, a definition a line; nothing if its language is unknown. Each content is parsed once."""
    language = language_of(path)
    if language is None:
        return ()
    key = language, hashlib.sha256(data).digest()
    if key not in _remembered:
        if len(_remembered) >= _MAX_REMEMBERED:
            _remembered.pop(next(iter(_remembered)))
        _remembered[key] = tuple(outline_lines(definitions(path, data)))
    return _remembered[key]


def outline_lines(found: Sequence[Definition]) -> list[str]:
    """One line a definition: its label, then its signature, indented by depth."""
    base = min((d.depth for d in found), default=0)
    return [f"L{d.signature_line}|{'    ' * (d.depth - base)}{shown(d.signature)}" for d in found]
