"""One server: started when it is needed, stopped when it hangs, started anew with the next call."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CallToolResult, Implementation
from mcp.types import Tool as ListedTool

from m3_tools.base import ToolError
from m3_tools.mcp.server import McpServer
from m3_tools.mcp.stdio import MAX_MESSAGE_BYTES, Stdio
from m3_tools.process import child_environment
from m3_tools.sandbox import Sandbox, SandboxError, confined
from m3_tools.text import shown

START_TIMEOUT_S = 30.0
MAX_STARTS = 5
MAX_TOOLS = 100
_STOP_TIMEOUT_S = 10.0


class Connection:
    """A server and its client. `sandbox` holds a started server; None gives it all rights."""

    def __init__(self, server: McpServer, *, root: Path, environment: Mapping[str, str], sandbox: Sandbox | None):
        self.server = server
        self._root, self._environment, self._sandbox = root, environment, sandbox
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self._stdio = Stdio()
        self._starting = asyncio.Lock()
        self._num_starts = 0

    async def open(self) -> list[ListedTool]:
        """Start the server, or connect to it; gives its tools. Errors: ToolError."""
        client = await self._opened()
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                return await _listed(client)
        except Exception as error:  # an edge: whatever a server does is told in one line
            await self.close()
            raise ToolError(f"the MCP server {self.server.name} does not list its tools: {self._why(error)}") from error

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool. Errors: ToolError; a server that did not answer in time or broke off was stopped."""
        client = await self._opened()
        try:
            async with asyncio.timeout(self.server.timeout_s):
                return await client.call_tool(name, dict(arguments))
        except TimeoutError:
            await self.close()
            reason = f"it did not answer within {self.server.timeout_s:g} s"
        except MCPError as error:
            if not self._stdio.ended:
                raise ToolError(f"The MCP server {self.server.name} refused the call: {_line(error)}") from error
            await self.close()
            reason = self._why(error)
        except Exception as error:  # an edge: whatever a server does is told in one line
            await self.close()
            reason = self._why(error)
        again = "It starts anew with the next call." if self._num_starts < MAX_STARTS else "It is not started again."
        raise ToolError(f"The MCP server {self.server.name} was stopped: {reason}. {again}")

    async def close(self) -> None:
        """Nothing of the server runs afterwards."""
        task, self._task, self._client = self._task, None, None
        if task is not None:
            self._closing.set()
            if not (await asyncio.wait([task], timeout=_STOP_TIMEOUT_S))[0]:
                task.cancel()
                await asyncio.wait([task])

    async def _opened(self) -> Client:
        async with self._starting:
            if self._stdio.ended:
                await self.close()
            if self._client is None:
                if self._num_starts >= MAX_STARTS:
                    raise ToolError(
                        f"The MCP server {self.server.name} failed {MAX_STARTS} times; it is not started again."
                    )
                self._num_starts += 1
                self._client = await self._start()
            return self._client

    async def _start(self) -> Client:
        self._closing, self._stdio = asyncio.Event(), Stdio()
        ready: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._serve(ready))
        try:
            return await asyncio.wait_for(asyncio.shield(ready), START_TIMEOUT_S)
        except BaseException as error:
            why = self._why(error)
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
            if not isinstance(error, Exception):
                raise
            raise ToolError(f"the MCP server {self.server.name} does not start: {why}") from error

    async def _serve(self, ready: asyncio.Future[Client]) -> None:
        """Hold the client open; the SDK wants it opened and closed by one task."""
        closing = self._closing
        try:
            async with self._transport() as transport, Client(transport, client_info=_INFO) as client:
                ready.set_result(client)
                await closing.wait()
        except Exception as error:  # told to whoever waits for the start; later it is a call that notices
            if not ready.done():
                ready.set_exception(error)
                ready.exception()

    @contextlib.asynccontextmanager
    async def _transport(self) -> AsyncIterator[Any]:
        if self.server.url:
            timeout = httpx2.Timeout(30.0, read=max(300.0, self.server.timeout_s))
            headers = dict(self.server.headers)
            capped = _Capped(httpx2.AsyncHTTPTransport())
            async with httpx2.AsyncClient(headers=headers, timeout=timeout, transport=capped) as http:
                yield streamable_http_client(self.server.url, http_client=http)
            return
        environment = child_environment(self._environment)
        with confined(self._sandbox, self.server.command, environment) as inside:
            given = {**inside.environment, **self.server.env}
            yield self._stdio.open(inside.argv, cwd=self._root, environment=given)

    def _why(self, error: BaseException) -> str:
        if self._stdio.reason:
            return self._stdio.reason
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if isinstance(error, TimeoutError):
            return f"no answer within {START_TIMEOUT_S:g} s"
        if isinstance(error, OSError | SandboxError | MCPError | httpx2.HTTPError):
            return _line(error) or type(error).__name__
        return f"{type(error).__name__}: {_line(error)}"


def _line(error: BaseException) -> str:
    return shown(" ".join(str(error).split()))[:300]


_INFO = Implementation(name="m3", version="0.1")


async def _listed(client: Client) -> list[ListedTool]:
    tools: list[ListedTool] = []
    cursor: str | None = None
    while len(tools) < MAX_TOOLS:
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if not cursor or not page.tools:
            break
    return tools[:MAX_TOOLS]


class _Capped(httpx2.AsyncBaseTransport):
    """Breaks a response off that is larger than a message may be; one that streams events may be longer."""

    def __init__(self, inner: httpx2.AsyncBaseTransport):
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await self._inner.handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _CappedStream(response.stream)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _CappedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream):
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        num_bytes = 0
        async for chunk in self._inner:
            num_bytes += len(chunk)
            if num_bytes > 4 * MAX_MESSAGE_BYTES:
                raise httpx2.ReadError(f"it sent more than {4 * MAX_MESSAGE_BYTES // 2**20} MiB")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()
