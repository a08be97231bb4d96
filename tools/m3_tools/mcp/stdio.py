"""The transport to a server that is started here: lines of JSON over its stdin and stdout, all of it bounded.

The SDK's own transport keeps a line of any length, and leaves children behind that make themselves a new session.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter

from m3_tools.process import TOKEN, kill_tree

MAX_MESSAGE_BYTES = 16 * 2**20
MAX_UNASKED_BYTES, MAX_UNASKED_MESSAGES = 64 * 2**20, 5_000
"""What a server may send after the last message to it; more is a flood."""
_MAX_LOG_CHARS = 2000
_GRACE_S = 1.0


class Stdio:
    """How a started server fares: `ended` once nothing more comes from it, `reason` says why."""

    def __init__(self) -> None:
        self.ended = False
        self.reason = ""
        self._log = ""
        self._bytes = self._messages = 0

    @contextlib.asynccontextmanager
    async def open(self, argv: Sequence[str], *, cwd: Path, environment: Mapping[str, str]) -> AsyncIterator[Any]:
        """Start the server; gives the streams that the SDK's client takes. Nothing of it runs afterwards.

        Errors: OSError when it cannot be started.
        """
        token = secrets.token_hex(16)
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=cwd,
                env={**environment, TOKEN: token},
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=MAX_MESSAGE_BYTES,
                start_new_session=True,
            )
        except BaseException:  # cancelled while it was being started
            kill_tree(-1, token)
            raise
        received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._receive, process, received)
                group.start_soon(self._send, process, to_send)
                group.start_soon(self._listen_to_log, process)
                try:
                    yield incoming, outgoing
                finally:
                    group.cancel_scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process, token)
            for stream in (received, incoming, outgoing, to_send):
                stream.close()

    async def _receive(self, process: asyncio.subprocess.Process, stream: Any) -> None:
        assert process.stdout is not None
        try:
            while line := await process.stdout.readline():
                self._bytes += len(line)
                self._messages += (is_answer := b'"id"' in line)
                if self._bytes > MAX_UNASKED_BYTES or self._messages > MAX_UNASKED_MESSAGES:
                    self.reason = "it sent without end"
                    break
                if not is_answer:  # nothing here waits for a notification
                    continue
                with contextlib.suppress(ValueError):  # what is no message is passed over, a stray print for instance
                    await stream.send(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))
        except ValueError:
            self.reason = f"it sent a message of more than {MAX_MESSAGE_BYTES // 2**20} MiB"
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        finally:
            if not self.reason:
                await asyncio.sleep(0)  # its last words on stderr may have come with the end
                said = self._log.strip().splitlines()
                self.reason = f"it ended; it said: {said[-1]}" if said else "it ended"
            self.ended = True
            stream.close()

    async def _send(self, process: asyncio.subprocess.Process, stream: Any) -> None:
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            async for message in stream:
                self._bytes = self._messages = 0
                text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(text.encode() + b"\n")
                await process.stdin.drain()

    async def _listen_to_log(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(1 << 16):
            self._log = (self._log + chunk.decode("utf-8", "replace"))[-_MAX_LOG_CHARS:]


async def _stop(process: asyncio.subprocess.Process, token: str) -> None:
    """Close its stdin, which asks it to end, and kill what is left after a moment."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _GRACE_S)
    kill_tree(process.pid, token)
    # The wait is also for the end of its output, which is not read any more; nothing public closes that pipe.
    getattr(process, "_transport").close()  # noqa: B009
    await process.wait()
