"""The `read` tool: a file, a range of its lines, or one definition, with a label before every line."""

from __future__ import annotations

import codecs
import os
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from m3_tools.base import TextBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.files import MAX_EDIT_BYTES, open_regular, remember
from m3_tools.outline import outline_lines
from m3_tools.paths import printable, resolve_for_reading, shown_name
from m3_tools.symbols import Definition, definitions, language_of
from m3_tools.text import Text, is_binary, shown

MAX_LINES = 2000
MAX_LINE_CHARS = 2000
MAX_CHARS = 120_000
MAX_CLASS_LINES = 150
_CONTAINERS = frozenset({"class", "struct", "impl", "interface", "trait", "namespace", "module", "record", "enum"})


class ReadArgs(ToolArgs):
    path: str = Field(description="file, relative to the repository")
    symbol: str | None = Field(default=None, description="only this definition: a name, or Class.method")
    start: int | None = Field(default=None, ge=1, description="first line")
    end: int | None = Field(default=None, ge=1, description="last line")
    column: int = Field(default=1, ge=1, description="first character of each line, to go on in a very long line")


class ReadTool(Tool[ReadArgs]):
    name: ClassVar[str] = "read"
    description: ClassVar[str] = (
        "Read a file, some of its lines, or one definition (symbol: name or Class.method). Every line has a label, "
        f"L30|. At most {MAX_LINES} lines of {MAX_LINE_CHARS} characters are shown; what is cut says how to go on. "
        "Folders, binary files and pipes are refused."
    )
    args_type: ClassVar[type[ToolArgs]] = ReadArgs

    async def run(self, args: ReadArgs, context: ToolContext) -> ToolResult:
        path = resolve_for_reading(context, args.path)
        name = shown_name(context, path)
        data, size = _load(path, name, full=bool(args.symbol) or args.start is not None)
        if is_binary(data):
            raise ToolError(f"{name} is a binary file of {size:,} bytes; it has no lines to read.")
        if len(data) == size:
            remember(context, path, data)
        source = Text.decode(data)
        first, last = args.start or 1, args.end
        if args.symbol:
            if args.start is not None or args.end is not None:
                raise ToolError("Give either symbol or start and end, not both.")
            chosen = _find(name, data, args.symbol)
            if chosen.kind in _CONTAINERS and chosen.last_line - chosen.first_line >= MAX_CLASS_LINES:
                return _class_outline(name, data, chosen)
            first, last = chosen.first_line, chosen.last_line
        text = _numbered(name, source, first, last, args.column, size)
        return ToolResult(text=text, display=(TextBlock(text=text, title=name),))


def _load(path: Path, name: str, *, full: bool) -> tuple[bytes, int]:
    """The bytes to show and the file's size. Of a huge file only the head, unless lines deep in it are wanted."""
    with os.fdopen(open_regular(path, name), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_EDIT_BYTES and full:
            raise ToolError(
                f"{name} is {size / 2**20:,.0f} MiB, too large for lines by number or symbol; "
                "use grep, or shell with sed -n."
            )
        if size <= MAX_EDIT_BYTES:
            data = file.read(MAX_EDIT_BYTES + 1)
            return data, max(size, len(data))
        data = file.read(MAX_LINES * MAX_LINE_CHARS)
    if not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        data = _first_lines(data)
    return data, size


def _first_lines(data: bytes) -> bytes:
    """The whole lines at the beginning, as many as are shown at most."""
    *rows, _ = data.split(b"\n", MAX_LINES)
    return b"\n".join(rows) + b"\n" if rows else data


def _find(name: str, data: bytes, symbol: str) -> Definition:
    """The one definition called `symbol`. Raises ToolError that lists the choices if there is none or several."""
    if language_of(name) is None:
        raise ToolError(
            f"{name} is of a language without a grammar here, so symbol cannot be used; give start and end."
        )
    found = definitions(name, data)
    wanted = symbol.replace("::", ".").replace("#", ".").removesuffix("()")
    exact = [d for d in found if d.name == wanted]
    matches = exact or [d for d in found if d.name.endswith(f".{wanted}")]
    if len(matches) == 1:
        return matches[0]
    if not matches:
        names = ", ".join(d.name for d in found[:40]) or "none"
        raise ToolError(f"{name} has no definition {printable(symbol)}. Its definitions: {names}.")
    places = "\n".join(f"L{d.signature_line}|{d.name}  (start={d.first_line}, end={d.last_line})" for d in matches)
    raise ToolError(f"{name} has {len(matches)} definitions {printable(symbol)}; read one by its lines:\n{places}")


def _class_outline(name: str, data: bytes, chosen: Definition) -> ToolResult:
    inside = [
        d for d in definitions(name, data) if chosen.first_line <= d.first_line and d.last_line <= chosen.last_line
    ]
    example = next((d.name for d in inside if d.depth > chosen.depth), f"{chosen.name}.method")
    length = chosen.last_line - chosen.first_line + 1
    lines = [
        f"{name} (outline of {chosen.name}, lines {chosen.first_line}-{chosen.last_line})",
        *outline_lines(inside),
        f"({chosen.name} has {length} lines. Read one part of it with symbol, for instance {example}.)",
    ]
    return ToolResult(text="\n".join(lines))


def _numbered(name: str, source: Text, first: int, last: int | None, column: int, size: int) -> str:
    lines = source.lines()
    whole = len(source.data) == size
    if not lines:
        return f"{name} (empty file)"
    if first > len(lines):
        raise ToolError(f"{name} has {len(lines)} lines; there is no line {first}.")
    end = min(last or len(lines), len(lines))
    if end < first:
        raise ToolError(f"end ({last}) comes before start ({first}).")
    rows: list[str] = []
    num_chars = 0
    for number in range(first, min(end, first + MAX_LINES - 1) + 1):
        line = lines[number - 1]
        row = f"L{number}|" + _cut(source.text[line.start : line.end], column)
        num_chars += len(row)
        if num_chars > MAX_CHARS and rows:
            break
        rows.append(row)
    shown_to = first + len(rows) - 1
    head = name
    if source.encoding != "utf-8":
        head += f" ({source.encoding} text)"
    if not whole:
        head += f" (lines {first}-{shown_to}, the head of a file of {size / 2**20:,.0f} MiB)"
    elif first > 1 or shown_to < len(lines):
        head += f" (lines {first}-{shown_to} of {len(lines)})"
    if not whole:
        rows.append("(more follows: find its lines with grep, or show them with shell and sed -n)")
    elif shown_to < end:
        rows.append(f"({end - shown_to:,} more lines: read with start={shown_to + 1})")
    return "\n".join([head, *rows])


def _cut(content: str, column: int) -> str:
    piece = content[column - 1 : column - 1 + MAX_LINE_CHARS]
    left = len(content) - (column - 1) - len(piece)
    return shown(piece) + (
        f" [… {left:,} more characters: read with column={column + MAX_LINE_CHARS}]" if left > 0 else ""
    )
