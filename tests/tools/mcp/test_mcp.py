"""Tools of MCP servers: real servers, well-behaved and not, over pipes and over HTTP."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import io
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from m3_tools.base import PictureBlock, Tool, ToolContext, ToolResult, call_tool, tool_spec
from m3_tools.mcp import connection
from m3_tools.mcp.server import McpServer
from m3_tools.mcp.tools import MAX_PICTURES, OpenServers, _free_name, open_servers
from m3_tools.sandbox import Sandbox, detect, work_tree_policy
from tests.tools.screenshot.hostile import BLUE, RED, cases, encoded, plain

HERE = Path(__file__).parent
BACKEND = detect().backend


def raw(how: str = "", **choices: Any) -> McpServer:
    return McpServer(name="raw", command=(sys.executable, str(HERE / "raw_server.py"), how), **choices)


@contextlib.asynccontextmanager
async def opened(context: ToolContext, *servers: McpServer, **choices: Any) -> AsyncIterator[OpenServers]:
    found = await open_servers(
        servers, root=context.root, environment={"PATH": "/usr/bin:/bin"}, sandbox=context.sandbox, **choices
    )
    try:
        yield found
    finally:
        await found.close()


def tools_of(found: OpenServers) -> dict[str, Tool[Any]]:
    return {tool.name: tool for tool in found.tools}


def called(context: ToolContext, server: McpServer, name: str = "raw__echo", times: int = 1) -> list[ToolResult]:
    async def run() -> list[ToolResult]:
        async with opened(context, server) as found:
            assert found.notes == () or server.name == "raw"
            return [await call_tool(tools_of(found)[name], {"text": "hello"}, context) for _ in range(times)]

    return asyncio.run(run())


def test_tools_look_like_ours_and_names_do_not_clash(context: ToolContext) -> None:
    async def run() -> None:
        async with opened(context, raw(), taken=("raw__look",)) as found:
            assert [tool.name for tool in found.tools] == ["raw__echo", "raw__look_2", "raw__e_c_h_o", "raw__e_c_h_o_2"]
            spec = tool_spec(found.tools[0])
            assert spec.description == "Say it again."
            assert spec.parameters == {"type": "object", "properties": {"text": {"type": "string"}}}
            assert not any(tool.read_only for tool in found.tools)
            assert found.notes == ("the tool huge of raw is left out: its schema is huge",)
            texts = [(await call_tool(tool, {"text": "hi"}, context)).text for tool in found.tools[2:]]
            assert texts == ["e c:h/o hi", "e_c_h_o hi"], "each name reaches its own tool"

    asyncio.run(run())


@given(st.lists(st.tuples(st.text(max_size=80), st.text(max_size=80)), max_size=30))
def test_every_name_can_be_called_and_is_taken_once(pairs: list[tuple[str, str]]) -> None:
    taken: set[str] = set()
    for server, tool in pairs:
        name = _free_name(server, tool, taken)
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
        assert name not in taken
        taken.add(name)


@pytest.mark.parametrize(
    ("how", "text", "is_error"),
    [
        ("", "echo hello", False),
        ("error", "echo hello", True),
        ("junk", "echo hello", False),
        ("ask-back", "echo hello", False),
        ("refuse", "The MCP server raw refused the call: no such thing", True),
    ],
)
def test_answers_come_through(context: ToolContext, how: str, text: str, is_error: bool) -> None:
    (result,) = called(context, raw(how))
    assert (result.text, result.is_error) == (text, is_error)


def answering(context: ToolContext, blocks: list[dict[str, Any]]) -> McpServer:
    """A server that answers with these blocks among others."""
    path = context.root.parent / "blocks.json"
    path.write_text(json.dumps(blocks))
    return raw("image", env={"BLOCKS": str(path)})


def picture(data: bytes | str) -> dict[str, str]:
    """A block with a picture; a text stands for base64 as it is."""
    text = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"type": "image", "mimeType": "image/png", "data": text}


def test_what_is_no_text_has_a_line_each_and_pictures_are_shown(context: ToolContext) -> None:
    (result,) = called(context, answering(context, [picture(encoded(plain(), "PNG"))]))
    assert result.text.splitlines() == [
        "see",
        "(picture 1, 40 x 20 pixels)",
        "(a resource: file:///a)",
        "(audio: left out)",
    ]
    (image,) = result.images
    with Image.open(io.BytesIO(image.data)) as shown:
        assert (shown.size, shown.getpixel((0, 0)), shown.getpixel((39, 19))) == ((40, 20), BLUE, RED)
    block = result.display[1]
    assert isinstance(block, PictureBlock)
    assert Path(block.path).read_bytes() == image.data


def test_a_picture_in_a_resource_is_one_too_and_there_are_not_too_many(context: ToolContext) -> None:
    data = picture(encoded(plain(), "PNG"))["data"]
    resource = {"uri": "file:///p.png", "mimeType": "image/png", "blob": data}
    blocks: list[dict[str, Any]] = [{"type": "resource", "resource": resource}] * (MAX_PICTURES + 1)
    (result,) = called(context, answering(context, blocks))
    assert len(result.images) == MAX_PICTURES
    assert "(a picture: left out, a result has 5 at most)" in result.text


def test_a_hostile_picture_is_one_line(context: ToolContext) -> None:
    bomb = next(case for case in cases() if case.name == "text-bomb.png")
    blocks: list[dict[str, Any]] = [picture(data) for data in (b"hello!", "no base64!", bomb.data, b"")]
    (result,) = called(context, answering(context, blocks))
    lines = result.text.splitlines()
    assert len(lines) == 4 + 3
    assert all(line.startswith("(a picture, left out: ") for line in lines[1:5])
    assert "base64" in lines[2]
    assert bomb.error in lines[3]
    assert result.images == ()


def test_a_long_answer_is_cut_and_can_be_read_whole(context: ToolContext) -> None:
    (result,) = called(context, raw("long"))
    assert len(result.text) < 10_000
    (file,) = context.spill_dir.iterdir()
    assert file.read_text().endswith(" end")


@pytest.fixture
def marker() -> Iterator[str]:
    """Seconds to sleep for; afterwards nothing may sleep for so long."""
    marker = f"7000.{time.monotonic_ns() % 10**9}"
    yield marker
    assert not [p for p in psutil.process_iter(["cmdline"]) if marker in (p.info["cmdline"] or ())]


def children() -> list[str]:
    mine = psutil.Process().children(recursive=True)
    return [" ".join(p.cmdline()) for p in mine if p.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("hang", "it did not answer within 0.8 s"),
        ("die", "it ended; it said: it is all too much"),
        ("flood", "it sent without end"),
        ("endless-line", "it sent a message of more than 16 MiB"),
    ],
)
def test_a_server_that_fails_is_stopped_and_says_why(context: ToolContext, how: str, why: str) -> None:
    timeout_s = 0.8 if how == "hang" else 30
    started = time.monotonic()
    (result,) = called(context, raw(how, timeout_s=timeout_s))
    assert result.is_error
    assert result.text == f"The MCP server raw was stopped: {why}. It starts anew with the next call."
    assert time.monotonic() - started < 20
    assert not [line for line in children() if "raw_server" in line]


def test_it_starts_anew_but_not_for_ever(context: ToolContext, tmp_path: Path) -> None:
    first, second = called(context, raw("die-once", env={"MARK": str(tmp_path / "mark")}), times=2)
    assert first.is_error
    assert second.text == "echo hello"
    *_, last = called(context, raw("die"), times=connection.MAX_STARTS + 1)
    assert "it is not started again" in last.text


def test_nothing_of_a_server_is_left(context: ToolContext, marker: str) -> None:
    (result,) = called(context, raw("daemon", env={"SECONDS_APART": marker}))
    assert not result.is_error


def test_an_interrupt_ends_the_call_and_the_server_still_closes(context: ToolContext) -> None:
    async def run() -> None:
        async with opened(context, raw("hang")) as found:
            task = asyncio.ensure_future(call_tool(tools_of(found)["raw__echo"], {}, context))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(run())
    assert not [line for line in children() if "raw_server" in line]


@pytest.mark.parametrize(
    ("server", "words"),
    [
        (raw("no-start"), "raw does not start: it ended; it said: cannot find my database"),
        (raw("silent"), "raw does not start: no answer within 1 s"),
        (McpServer(name="gone", command=("/no/such/program",)), "gone does not start: [Errno 2] No such file"),
        (McpServer(name="closed", url="http://127.0.0.1:9/mcp"), "closed does not start: "),
    ],
)
def test_one_that_does_not_start_is_told_and_the_others_work(
    context: ToolContext, server: McpServer, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "START_TIMEOUT_S", 1 if "silent" in server.command else 10)

    async def run() -> None:
        good = dataclasses.replace(raw(), name="good")
        async with opened(context, server, good) as found:
            assert words in found.notes[0]
            assert "\n" not in found.notes[0]
            assert "good__echo" in tools_of(found)

    asyncio.run(run())


@pytest.mark.skipif(BACKEND is None, reason="no sandbox works here")
def test_it_runs_in_the_sandbox(context: ToolContext) -> None:
    assert BACKEND is not None
    (context.root / ".env").write_text("hunter2")
    readable = (Path(sys.prefix), Path(sys.base_prefix), HERE)
    policy = work_tree_policy(context.root, readable=readable)
    inside = dataclasses.replace(context, sandbox=Sandbox(BACKEND, policy))
    (result,) = called(inside, raw(env={"GIVEN_TOKEN": "t"}), "raw__look")
    assert json.loads(result.text) == {"env": "", "made": ["/tmp/written"], "given": "t", "net": 1}
    assert not (context.root / ".claude").exists()
    (result,) = called(inside, raw(sandbox=False), "raw__look")
    assert str(context.root) not in json.loads(result.text)["made"]
    assert "written" in json.loads(result.text)["made"]


def test_without_a_sandbox_only_those_that_do_without_are_started(context: ToolContext) -> None:
    async def run() -> None:
        free = dataclasses.replace(raw(), name="free", sandbox=False)
        async with opened(context, raw(), free, unconfined="no sandbox works here.") as found:
            assert found.notes[0] == "the MCP server raw is not started: no sandbox works here"
            assert "free__echo" in tools_of(found)

    asyncio.run(run())


@contextlib.contextmanager
def http_server() -> Iterator[tuple[str, Callable[[], None]]]:
    """The address of a server over HTTP, and what kills it and starts it anew."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def start() -> subprocess.Popen[bytes]:
        argv = [sys.executable, str(HERE / "sdk_server.py"), str(port)]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        return process

    running = [start()]

    def again() -> None:
        running[0].kill()
        running[0].wait()
        running[0] = start()

    try:
        yield f"http://127.0.0.1:{port}/mcp", again
    finally:
        running[0].kill()
        running[0].wait()


async def three_calls(found: OpenServers, context: ToolContext, before_last: Callable[[], None]) -> list[ToolResult]:
    tools = tools_of(found)
    call: Callable[..., Awaitable[ToolResult]] = call_tool
    results = [await call(tools["sdk__add"], {"a": 2, "b": 3}, context), await call(tools["sdk__fail"], {}, context)]
    before_last()
    for _ in range(2):
        results.append(await call(tools["sdk__add"], {"a": 4, "b": 5}, context))
    return results


def check(results: list[ToolResult]) -> None:
    assert (results[0].text, results[0].is_error) == ("5", False)
    assert results[1].is_error
    assert "fail" in results[1].text
    assert results[-1].text == "9"


def test_the_official_servers_work_over_pipes(context: ToolContext) -> None:
    server = McpServer(name="sdk", command=(sys.executable, str(HERE / "sdk_server.py")))

    async def run() -> None:
        async with opened(context, server) as found:
            check(await three_calls(found, context, lambda: None))

    asyncio.run(run())


def test_the_official_servers_work_over_http_and_after_a_restart(context: ToolContext) -> None:
    async def run() -> None:
        with http_server() as (url, again):
            async with opened(context, McpServer(name="sdk", url=url, headers={"X-Key": "k"})) as found:
                check(await three_calls(found, context, again))

    asyncio.run(run())
