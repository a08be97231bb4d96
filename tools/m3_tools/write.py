"""The `write` tool: a new file, or all of an existing one."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import Field

from m3_tools.base import Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.change import apply_change
from m3_tools.files import check_unchanged, read_bytes
from m3_tools.paths import relative_name, resolve_for_writing
from m3_tools.text import Text, with_ending

_PLACEHOLDER = re.compile(
    r"^\s*(?:#|//|/\*|<!--|--|\.\.\.|…).*\b(?:rest of|remaining|existing|unchanged|same as before)\b.*$",
    re.IGNORECASE | re.MULTILINE,
)
_STANDS_FOR_CODE = re.compile(
    r"(?:\.\.\.|…|unchanged|same as before|rest of (?:the )?(?:file|code|class|function))", re.IGNORECASE
)


class WriteArgs(ToolArgs):
    path: str = Field(description="file, relative to the repository")
    content: str = Field(description="the whole content")


class WriteTool(Tool[WriteArgs]):
    name: ClassVar[str] = "write"
    description: ClassVar[str] = (
        "Write a whole file: a new one (its folders are made), or an existing one that was read before. Give every "
        "line; a placeholder for code left out is refused. Encoding, BOM and CRLF of an existing file are kept. For a "
        "small change use edit."
    )
    args_type: ClassVar[type[ToolArgs]] = WriteArgs
    read_only: ClassVar[bool] = False

    async def run(self, args: WriteArgs, context: ToolContext) -> ToolResult:
        path = resolve_for_writing(context, args.path)
        name = relative_name(context.root, path)
        before = read_bytes(path, name) if path.exists() else None
        _refuse_placeholder(args.content, before)
        if before is None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except (FileExistsError, NotADirectoryError):
                raise ToolError(f"{name} cannot be made: a part of its path is a file.") from None
            after = _encoded(args.content)
            return apply_change(context, path, name, None, after, f"{name}: written, new file, {_size(after)}")
        if path not in context.read_hashes:
            raise ToolError(f"{name} exists and was not read. Read it first, so that nothing in it is lost unseen.")
        check_unchanged(context, path, before, name)
        source = Text.decode(before)
        endings = {line.ending for line in source.lines()} - {""}
        content = args.content
        if len(endings) == 1 and "\r" not in content:
            content = with_ending(content, next(iter(endings)))
        after = source.replace([(0, len(source.text), content)])
        kept = "; CRLF kept" if endings == {"\r\n"} and "\r" not in args.content else ""
        said = f"{name}: written, {_size(after)}; before: {_size(before)}{kept}"
        return apply_change(context, path, name, before, after, said)


def _size(data: bytes) -> str:
    lines, size = len(Text.decode(data).lines()), len(data)
    return f"{lines:,} line{'' if lines == 1 else 's'}, {size:,} byte{'' if size == 1 else 's'}"


def _encoded(content: str) -> bytes:
    try:
        return content.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ToolError(f"content has {content[error.start]!r}, which is not a character.") from None


def _refuse_placeholder(content: str, before: bytes | None) -> None:
    known = Text.decode(before).text if before is not None else ""
    for match in _PLACEHOLDER.finditer(content):
        line = match.group().strip()
        if _STANDS_FOR_CODE.search(line) and line not in known:
            raise ToolError(
                f"Nothing was written: {line!r} stands for code that was left out. Give every line, or use edit."
            )
