"""A server as a process: its socket, and its end."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette

from m3_runtime.chat.session import ChatEngine
from m3_runtime.server.app import create_app
from m3_runtime.server.worker import Worker

_LAST_WORDS_S = 5.0
"""How long clients may take to read that their answer was ended."""


def bind(host: str, port: int, *, api_key: str) -> socket.socket:
    """A socket that holds the address and does not listen yet; port 0 takes a free one.

    ValueError for an address that others can reach without an API key; OSError if the address cannot be had.
    """
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    if not api_key and not ipaddress.ip_address(str(address[0])).is_loopback:
        raise ValueError(f"serving on {host} opens the model to the network; give an API key or use 127.0.0.1")
    listening = socket.socket(family, kind)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening


def run(
    chat: ChatEngine,
    listening: socket.socket,
    *,
    api_key: str = "",
    grace_s: float = 10.0,
    on_start: Callable[[], None] = lambda: None,
) -> None:
    """Serve on a bound socket until SIGTERM or Ctrl-C; `on_start` is called when clients can connect.

    After the signal nothing new is taken, answers that run have `grace_s` seconds, and what still runs then ends with
    an error that its client can read. The signal is raised again at the end. RuntimeError when the model was lost.
    """
    server = _Server(create_app(chat, api_key=api_key), grace_s, on_start)
    server.run(sockets=[listening])
    if server.worker.lost is not None:
        raise server.worker.lost


class _Server(uvicorn.Server):
    def __init__(self, app: Starlette, grace_s: float, on_start: Callable[[], None]):
        limit_s = int(grace_s + _LAST_WORDS_S)
        super().__init__(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=limit_s))
        self.worker: Worker = app.state.worker
        self.worker.on_lost = self._stop
        self._grace_s, self._on_start = grace_s, on_start

    def _stop(self) -> None:
        """Called on the worker's thread; the loop looks at this ten times a second."""
        self._grace_s = 0
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        ending = asyncio.create_task(self._end_answers())
        await super().shutdown(sockets)
        ending.cancel()

    async def _end_answers(self) -> None:
        await asyncio.sleep(self._grace_s)
        await asyncio.to_thread(self.worker.stop)
