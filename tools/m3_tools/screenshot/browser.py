"""A headless Chromium, driven over pipes by its DevTools protocol: messages of JSON that end in a NUL byte.

The pipes are named ones in a private folder, so that they pass through whatever starts the browser. Protocol:
https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from m3_tools.process import TOKEN, child_environment, kill_tree
from m3_tools.sandbox import Sandbox, SandboxError, confined
from m3_tools.screenshot.picture import PictureError

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge", "brave-browser")
MAC_PROGRAMS = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
)
INSTALL = "install Chromium (apt install chromium, dnf install chromium, brew install --cask chromium)"
CALL_TIMEOUT_S = 20.0
MAX_MESSAGE_BYTES = 64 * 2**20
_WITH_PIPES = ("/bin/sh", "-c", 'exec "$@" 3<"$0/in" 4>"$0/out"')
_OPTIONS = (
    *("--headless", "--remote-debugging-pipe", "--no-first-run", "--no-default-browser-check", "--mute-audio"),
    *("--disable-gpu", "--disable-dev-shm-usage", "--disable-extensions", "--disable-sync", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-default-apps"),
    *("--force-color-profile=srgb", "--font-render-hinting=none"),
)


class NoBrowser(PictureError):
    """No browser that can capture a page is installed, or it does not start."""


def find_browser(environment: Mapping[str, str]) -> str:
    """The program of a Chromium on PATH, or in the places of macOS. Errors: NoBrowser, with what to install."""
    for name in NAMES:
        if program := shutil.which(name, path=environment.get("PATH", os.defpath)):
            return program
    for program in MAC_PROGRAMS if sys.platform == "darwin" else ():
        if os.access(program, os.X_OK):
            return program
    raise NoBrowser(f"a page is captured by Chromium, which is not installed: {INSTALL}.")


class Tab:
    """One page of a running browser. `on_event` hears what the browser says by itself: a method and its parameters."""

    def __init__(self, incoming: asyncio.StreamReader, outgoing: int):
        self._incoming, self._outgoing = incoming, outgoing
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._session = ""
        self.on_event: Callable[[str, Mapping[str, Any]], None] = lambda method, parameters: None

    async def open(self) -> None:
        target = await self.call("Target.createTarget", url="about:blank")
        attached = await self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command. Errors: PictureError if the browser refuses it, dies or is silent."""
        number = self.send(method, **parameters)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(answer, CALL_TIMEOUT_S)
        except TimeoutError:
            raise PictureError(f"the browser did not answer {method} for {CALL_TIMEOUT_S:.0f} s.") from None
        finally:
            del self._waiting[number]

    def send(self, method: str, **parameters: Any) -> int:
        """Send a command without waiting for its result."""
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        try:
            os.write(self._outgoing, json.dumps(message).encode() + b"\0")  # short, and the browser reads at once
        except OSError as error:
            raise PictureError(f"the browser does not listen: {error.strerror}.") from error
        return number

    async def listen(self) -> None:
        """Hand out what the browser says, until it ends."""
        try:
            while True:
                message = json.loads((await self._incoming.readuntil(b"\0"))[:-1])
                answer = self._waiting.get(message.get("id"))
                if "method" in message:
                    self.on_event(message["method"], message.get("params", {}))
                elif answer is not None and not answer.done():
                    if problem := message.get("error"):
                        answer.set_exception(PictureError(f"the browser refused: {problem.get('message')}."))
                    else:
                        answer.set_result(message.get("result", {}))
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError):
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(PictureError("the browser ended in the middle of the work."))


@contextlib.asynccontextmanager
async def open_tab(
    environment: Mapping[str, str], *, sandbox: Sandbox | None = None, options: Sequence[str] = ()
) -> AsyncIterator[Tab]:
    """A browser that was started for this block, with a fresh profile; nothing of it runs afterwards.

    In a sandbox of ours it does without its own. Errors: NoBrowser.
    """
    program = find_browser(environment)
    has_own_sandbox = sandbox is None and os.geteuid() != 0  # it refuses to make one for root
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="m3-browser-", ignore_cleanup_errors=True) as folder:
        command = [*_WITH_PIPES, folder, program, *_OPTIONS, *(() if has_own_sandbox else ("--no-sandbox",)), *options]
        command.append(f"--user-data-dir={folder}/profile")
        for name in ("in", "out"):
            os.mkfifo(f"{folder}/{name}", 0o600)
        log = Path(folder, "log")
        try:
            inside_environment = child_environment(environment)
            with (
                confined(sandbox, command, inside_environment, writable=[Path(folder)]) as inside,
                log.open("wb") as file,
            ):
                process = await asyncio.create_subprocess_exec(
                    *inside.argv,
                    env={**inside.environment, TOKEN: token},
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=asyncio.subprocess.DEVNULL,
                    stderr=file,
                    start_new_session=True,
                )
                try:
                    async with _connected(folder, process) as tab:
                        await _started(tab, process, log)
                        yield tab
                finally:
                    kill_tree(process.pid, token)
                    await process.wait()
        except (OSError, SandboxError) as error:
            raise NoBrowser(f"{program} could not be started: {error}.") from error


async def _started(tab: Tab, process: asyncio.subprocess.Process, log: Path) -> None:
    try:
        await tab.open()
    except PictureError as error:
        lines = log.read_text("utf-8", "replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), str(error))
        raise NoBrowser(f"Chromium did not start ({said[-200:]}).") from error


@contextlib.asynccontextmanager
async def _connected(folder: str, process: asyncio.subprocess.Process) -> AsyncIterator[Tab]:
    """A tab behind the pipes in the folder. Opened for both directions, none waits for its other side."""
    flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC
    outgoing = os.open(f"{folder}/in", flags)
    reader = asyncio.StreamReader(limit=MAX_MESSAGE_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(os.open(f"{folder}/out", flags), "rb")
    )
    tab = Tab(reader, outgoing)

    async def end() -> None:
        await process.wait()
        reader.feed_eof()  # no pipe ends by itself while this side holds it open

    tasks = [asyncio.create_task(tab.listen()), asyncio.create_task(end())]
    try:
        yield tab
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        transport.close()
        os.close(outgoing)
