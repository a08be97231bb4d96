"""Whatever a server sends over its pipe: an answer, or one line that says what was wrong, in time."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from m3_tools.base import ToolContext, call_tool
from m3_tools.mcp import connection
from m3_tools.mcp.server import McpServer
from m3_tools.mcp.tools import open_servers
from tests.fuzz.fuzzing import fuzz

SERVER = Path(__file__).with_name("hostile_server.py")
TIMEOUT_S = 0.5


def message(result: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": "@ID", "result": result}).replace('"@ID"', "@ID") + "\n"


def answer(**result: Any) -> str:
    return message(result)


GREETING = answer(protocolVersion="2025-06-18", capabilities={"tools": {}}, serverInfo={"name": "h", "version": "1"})
TOOLS = answer(tools=[{"name": "t", "inputSchema": {"type": "object"}}])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
BLOCKS = st.lists(
    st.one_of(
        st.fixed_dictionaries({"type": st.just("text"), "text": st.text(max_size=30)}),
        st.fixed_dictionaries({"type": st.just("image"), "mimeType": st.text(max_size=9), "data": st.text(max_size=9)}),
        st.fixed_dictionaries({"type": st.sampled_from(["audio", "resource", "resource_link", "x"])}, optional={
            "uri": st.text(max_size=9), "resource": json_values, "name": st.text(max_size=5), "data": json_values}),
        json_values,
    ),
    max_size=3,
)  # fmt: skip
FRAME = st.one_of(
    st.sampled_from(
        [GREETING, TOOLS, "END", "\n", "{}\n", "[]\n", "null\n", "@ID\n", "\x00\n", "\xff\xfe\n", "[" * 20_000 + "\n",
         '{"id":' * 5_000, "Content-Length: 5\r\n\r\nhello", '{"id":@ID,"result":', '{"jsonrpc":"2.0","id":@ID}\n',
         '{"jsonrpc":"2.0","id":@ID,"error":{}}\n', '{"jsonrpc":"2.0","id":99,"result":{}}\n',
         '{"jsonrpc":"2.0","id":@ID,"error":{"code":1e999,"message":"a\\nb"}}\n',
         '{"jsonrpc":"2.0","id":@ID,"error":{"code":-1,"message":"a\\nb"}}\n',
         '{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage","params":{}}\n',
         '{"jsonrpc":"2.0","id":"s","method":"roots/list"}\n',
         '{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n']
    ),
    BLOCKS.map(lambda blocks: answer(content=blocks)),
    json_values.map(lambda value: answer(content=value)),
    json_values.map(lambda value: answer(tools=value, nextCursor=value)),
    st.dictionaries(st.text(max_size=8), json_values, max_size=3).map(lambda result: message(result)),
    json_values.map(lambda value: message(value)),
    st.binary(max_size=30).map(lambda data: data.decode("latin-1") + "\n"),
)  # fmt: skip
frames = st.lists(FRAME, min_size=1, max_size=3)
cases = st.one_of(
    st.tuples(st.just([GREETING]), st.just([TOOLS]), frames),
    st.tuples(st.just([GREETING]), frames, frames),
    st.tuples(frames, frames, frames),
).map(list)


def test_no_answer_of_a_server_breaks_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "START_TIMEOUT_S", TIMEOUT_S)

    def behaviour(case: list[list[str]]) -> str:
        with tempfile.TemporaryDirectory(prefix="m3-fuzz-") as folder:
            root = Path(folder).resolve()
            path = root / "case.json"
            path.write_text(json.dumps([["".join(c for c in f if c < "\u0100") for f in frame] for frame in case]))
            started = time.monotonic()
            said = asyncio.run(talk(root, path))
        assert time.monotonic() - started < 30  # five deadlines, and a machine with other work
        return said

    fuzz("mcp_client", cases, behaviour)


async def talk(root: Path, path: Path) -> str:
    """Open the server and call its tools once; how that ended."""
    server = McpServer(name="h", command=(sys.executable, "-I", "-S", str(SERVER), str(path)), timeout_s=TIMEOUT_S)
    context = ToolContext(root=root, spill_dir=root / "spill")
    found = await open_servers((server,), root=root, environment={"PATH": "/usr/bin:/bin"}, sandbox=None)
    try:
        for note in found.notes:
            assert "\n" not in note
        if not found.tools:
            return "not opened: " + " ".join(str(found.notes).split()[:9])[:60]
        result = await call_tool(found.tools[0], {"text": "x"}, context)
        result.text.encode()
        assert not result.is_error or "\n" not in result.text or "content" in str(path.read_text())
        return f"called: {result.is_error} {len(result.images)} {result.text[:40] if result.is_error else ''}"
    finally:
        await found.close()
