"""A server of the small random model in a thread of the test."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import uvicorn

from m3_runtime.chat.session import ChatEngine
from m3_runtime.server import bind, create_app
from m3_runtime.server.limits import Limits


class Running:
    """A server in a thread, and the engine behind it."""

    def __init__(self, folder: Path, api_key: str = "", limits: Limits | None = None):
        self.folder = folder
        self.chat = ChatEngine.load(folder, name="tiny", max_context=1024)
        self.app = create_app(self.chat, api_key=api_key, limits=limits)
        self._socket = bind("127.0.0.1", 0, api_key=api_key)
        self.port = self._socket.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(uvicorn.Config(self.app, log_level="error"))
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    def __enter__(self) -> Running:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)
        return self

    def __exit__(self, *error: object) -> None:
        self._server.should_exit = True
        self._thread.join()

    def wait_until_idle(self) -> None:
        """Until no sequence runs and every page is free or kept as a prefix."""
        pool, tree = self.chat.engine.pool, self.chat.engine.prefix_cache
        assert tree is not None
        deadline = time.monotonic() + 10
        while self.app.state.worker.num_running or pool.num_free + tree.num_pages != pool.num_pages:
            assert time.monotonic() < deadline, "a sequence was left behind"
            time.sleep(0.01)
