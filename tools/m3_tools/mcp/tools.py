"""The tools of all servers as ours: one name each, a deadline, bounded text, and no right that ours have not."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mcp.types import BlobResourceContents, CallToolResult, EmbeddedResource, ImageContent, ResourceLink, TextContent
from mcp.types import Tool as ListedTool
from pydantic import ConfigDict

from m3_tools.base import TextBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult, compact_json
from m3_tools.mcp.connection import Connection
from m3_tools.mcp.server import McpServer
from m3_tools.output import Output
from m3_tools.sandbox import Sandbox
from m3_tools.screenshot.decode import decode
from m3_tools.screenshot.picture import Picture, PictureError, keep
from m3_tools.text import shown

MAX_NAME_CHARS = 64
MAX_DESCRIPTION_CHARS = 2000
MAX_SCHEMA_CHARS = 20_000
MAX_PICTURES = 5
"""Of one result."""
HEAD_BYTES, TAIL_BYTES, LINE_CHARS = 20_000, 8_000, 4_000


class AnyArgs(ToolArgs):
    """Arguments that the server checks, not we."""

    model_config = ConfigDict(extra="allow", frozen=True)


@dataclasses.dataclass(kw_only=True)
class OpenServers:
    """The servers that were opened, their tools, and what the person should hear of the others."""

    tools: tuple[Tool[Any], ...] = ()
    notes: tuple[str, ...] = ()
    connections: tuple[Connection, ...] = ()

    async def close(self) -> None:
        """Nothing of any server runs afterwards."""
        await asyncio.gather(*(connection.close() for connection in self.connections))


async def open_servers(
    servers: Sequence[McpServer],
    *,
    root: Path,
    environment: Mapping[str, str],
    sandbox: Sandbox | None,
    unconfined: str = "",
    taken: Collection[str] = (),
) -> OpenServers:
    """Open every server; one that fails is left out, with a note.

    A started server reads the work tree, writes to a private /tmp alone, and has no network unless its settings give
    it. `unconfined` says why there is no sandbox: then none is started that does not do without by itself. `taken` are
    names of tools that stand already.
    """
    notes = []
    connections = []
    for server in servers:
        if server.command and server.sandbox and unconfined:
            notes.append(f"the MCP server {server.name} is not started: {unconfined.rstrip('.')}")
            continue
        boundary = _boundary(sandbox, server, root) if sandbox is not None and server.sandbox else None
        connections.append(Connection(server, root=root, environment=environment, sandbox=boundary))
    result = OpenServers(connections=tuple(connections))
    try:
        opened = await asyncio.gather(*(connection.open() for connection in connections), return_exceptions=True)
    except BaseException:  # interrupted: those that stand already must not stay
        await result.close()
        raise
    names = set(taken)
    tools: list[Tool[Any]] = []
    for connection, found in zip(connections, opened, strict=True):
        if isinstance(found, ToolError):
            notes.append(str(found))
            continue
        if isinstance(found, BaseException):
            raise found
        for listed in found:
            if len(json.dumps(listed.input_schema)) > MAX_SCHEMA_CHARS:
                notes.append(
                    f"the tool {shown(listed.name)[:60]} of {connection.server.name} is left out: its schema is huge"
                )
                continue
            name = _free_name(connection.server.name, listed.name, names)
            names.add(name)
            tools.append(_tool(name, connection, listed))
    result.tools, result.notes = tuple(tools), tuple(notes)
    return result


def _boundary(sandbox: Sandbox, server: McpServer, root: Path) -> Sandbox:
    policy = sandbox.policy
    policy = dataclasses.replace(
        policy, writable=(), protected=(), scratch=None, readable=(*policy.readable, root), network=server.network
    )
    return dataclasses.replace(sandbox, policy=policy)


def _free_name(server: str, tool: str, taken: Collection[str]) -> str:
    """`server__tool` in the characters that models may use, with a number behind it if that name is taken."""
    name = re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{tool}")[:MAX_NAME_CHARS]
    number = 1
    while name in taken:
        number += 1
        name = f"{name[: MAX_NAME_CHARS - 4].removesuffix(f'_{number - 1}')}_{number}"
    return name


def _tool(tool_name: str, connection: Connection, listed: ListedTool) -> Tool[AnyArgs]:
    text = shown(listed.description or listed.title or listed.name)[:MAX_DESCRIPTION_CHARS]

    class ServerTool(Tool[AnyArgs]):
        name: ClassVar[str] = tool_name
        description: ClassVar[str] = text
        args_type: ClassVar[type[ToolArgs]] = AnyArgs
        read_only: ClassVar[bool] = False  # whatever the server says of itself

        def parameters(self) -> Mapping[str, Any]:
            return {"type": "object", "properties": {}, **listed.input_schema}

        async def run(self, args: AnyArgs, context: ToolContext) -> ToolResult:
            result = await connection.call(listed.name, args.model_extra or {})
            read = await asyncio.to_thread(_read, result)
            output = Output(context.spill_dir, HEAD_BYTES, TAIL_BYTES, line_chars=LINE_CHARS)
            output.add(read.text.encode("utf-8", "replace"))
            output.close()
            title = f"{connection.server.name}: {shown(listed.name)}"
            pictures = [keep(picture, context.spill_dir, "picture") for picture in read.pictures]
            return ToolResult(
                text=output.text(),
                display=(TextBlock(text=output.text(), title=title), *pictures),
                images=read.pictures,
                is_error=result.is_error,
            )

    return ServerTool()


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Read:
    """A result as text, in which what is no text has a line that says what it was, and its pictures."""

    text: str
    pictures: tuple[Picture, ...]


def _read(result: CallToolResult) -> _Read:
    lines: list[str] = []
    pictures: list[Picture] = []
    for block in result.content:
        encoded = _encoded_picture(block)
        if encoded is None:
            lines.append(_part(block))
        elif len(pictures) >= MAX_PICTURES:
            lines.append(f"(a picture: left out, a result has {MAX_PICTURES} at most)")
        else:
            try:
                picture = _picture(encoded, f"picture {len(pictures) + 1}")
            except PictureError as error:
                lines.append(f"(a picture, left out: {_one_line(error)})")
            else:
                pictures.append(picture)
                size = f"{picture.width} x {picture.height} pixels"
                lines.append("; ".join([f"({picture.name}, {size}", *picture.notes]) + ")")
    if not lines and result.structured_content is not None:
        lines = [compact_json(result.structured_content)]
    return _Read(text="\n".join(lines) or "(no output)", pictures=tuple(pictures))


def _encoded_picture(block: Any) -> str | None:
    """What a block of a picture holds, in base64."""
    if isinstance(block, ImageContent):
        return block.data
    if isinstance(block, EmbeddedResource) and isinstance(block.resource, BlobResourceContents):
        return block.resource.blob if (block.resource.mime_type or "").startswith("image/") else None
    return None


def _picture(encoded: str, name: str) -> Picture:
    """Decoded where nothing of ours can be harmed, whatever the server says that it is. Errors: PictureError."""
    try:
        data = base64.b64decode(encoded, validate=True)
    except ValueError:
        raise PictureError("its base64 is damaged") from None
    return decode(data, name=name)


def _one_line(error: PictureError) -> str:
    return shown(" ".join(str(error).split())).rstrip(".")


def _part(block: Any) -> str:
    match block:
        case TextContent():
            return block.text
        case ResourceLink():
            return f"(a resource: {block.uri})"
        case EmbeddedResource():
            text = getattr(block.resource, "text", None)
            return text if isinstance(text, str) else f"(a resource: {block.resource.uri}, not text)"
    return f"({block.type}: left out)"
