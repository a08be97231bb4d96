"""A program in a terminal of its own: what it shows is kept as a screen, in bounded memory.

The terminal is made outside of the sandbox, and the program gets nothing but its three descriptors; inside it makes the
terminal its own, so that Ctrl-C and `/dev/tty` work. Of a program that prints without end nothing more is read until
somebody looks again: it waits meanwhile.

Not covered: the terminal's name, which does not exist inside the sandbox (`tty` finds none); colours; the screen that
an editor covers is not shown again when it ends.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import secrets
import sys
import termios
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

from m3_tools.base import ToolError
from m3_tools.process import TOKEN, kill_tree
from m3_tools.sandbox import Sandbox, SandboxError, confined
from m3_tools.secret import RedactedStream, Secrets
from m3_tools.text import shown

COLUMNS, LINES = 100, 30
MAX_SCROLLED_LINES = 200
"""Lines that have left the screen since somebody looked; of more than these the last are kept."""
MAX_UNSEEN_BYTES = 1 << 17
"""What is read of a program's output before somebody looks."""
QUIET_S = 0.5
_TYPING_TIMEOUT_S = 5.0
_TAKE_TERMINAL = """
import fcntl, os, sys, termios
if os.getsid(0) != os.getpid():
    os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error.strerror}")
"""


class PseudoTerminal:
    """One program and its screen. `pid` is None until it has started; `exit_code` is that of a program that ended."""

    def __init__(self, command: str, secrets: Secrets):
        self.command = command
        self.number = 0
        self.pid: int | None = None
        self.exit_code: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._screen = _Screen(self._answer)
        self._stream = pyte.Stream(self._screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._shown = RedactedStream(self._show, secrets.redact)
        self._descriptor = -1
        self._room = MAX_UNSEEN_BYTES
        self._last_output = 0.0
        self._is_seen = True
        self._is_read = False

    @property
    def ended(self) -> bool:
        return self._task is not None and self._task.done()

    @property
    def is_held(self) -> bool:
        """Whether the program waits because it printed too much that nobody has seen."""
        return self._room <= 0 and not self.ended

    async def start(
        self, argv: Sequence[str], *, cwd: Path, environment: Mapping[str, str], sandbox: Sandbox | None
    ) -> None:
        """Start the program. Errors: ToolError."""
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(argv, cwd, environment, sandbox, started))
        try:
            await asyncio.wait([self._task, started], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await self.stop()
            raise
        if not started.done():
            await self._task  # raises why

    async def type(self, text: str) -> None:
        """Type the text. Errors: ToolError when the program ended or does not take it."""
        data = text.encode("utf-8", "replace")
        deadline = time.monotonic() + _TYPING_TIMEOUT_S
        while data:
            if self.ended:
                raise ToolError(f"Terminal {self.number} has ended; nothing can be typed. Start another one.")
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ToolError(
                        f"Terminal {self.number} did not take the last {len(data):,} bytes: the program reads nothing. "
                        "Stop it, or press ctrl-c."
                    ) from None
                await asyncio.sleep(0.02)
            except OSError:
                await asyncio.wait([self._task] if self._task else [])

    async def settle(self, wait_s: float) -> None:
        """Wait until it has shown something that nobody saw, and then nothing more for a moment, at most so long."""
        deadline = time.monotonic() + wait_s
        while (now := time.monotonic()) < deadline and not self.ended and not self.is_held:
            if not self._is_seen and now - self._last_output >= QUIET_S:
                break
            await asyncio.sleep(0.02)
        self._shown.close()

    def look(self) -> str:
        """The lines that have left the screen since the last look, then the screen."""
        text = self._screen.take()
        self._room, self._is_seen = MAX_UNSEEN_BYTES, True
        if not self.ended:
            self._resume()
        return text

    @property
    def cursor(self) -> tuple[int, int]:
        """Line and column, from 1."""
        return self._screen.cursor.y + 1, self._screen.cursor.x + 1

    async def stop(self) -> None:
        """Stop it; nothing of it runs afterwards."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(
        self, argv: Sequence[str], cwd: Path, environment: Mapping[str, str], sandbox: Sandbox | None,
        started: asyncio.Future[None],
    ) -> None:  # fmt: skip
        """The program inside the boundary, from its start to its end."""
        token = secrets.token_hex(16)
        line = [sys.executable, "-I", "-S", "-c", _TAKE_TERMINAL, *argv]
        self._descriptor, theirs = os.openpty()
        process: asyncio.subprocess.Process | None = None
        try:
            os.set_blocking(self._descriptor, False)
            termios.tcsetwinsize(theirs, (LINES, COLUMNS))
            with confined(sandbox, line, environment) as inside:
                process = await asyncio.create_subprocess_exec(
                    *inside.argv, cwd=cwd, env={**inside.environment, TOKEN: token},
                    stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
                )  # fmt: skip
                os.close(theirs)
                theirs = -1
                self.pid = process.pid
                self._resume()
                started.set_result(None)
                self.exit_code = await process.wait()
        except (OSError, ValueError, SandboxError) as error:
            raise ToolError(f"The program was not started: {getattr(error, 'strerror', None) or error}.") from error
        finally:
            # No await before the kill: a cancellation that arrives here must still leave nothing running.
            kill_tree(process.pid if process else -1, token)
            self._drain()
            os.close(self._descriptor)
            self._descriptor = -1  # whatever gets the number now must not be typed into
            if theirs >= 0:
                os.close(theirs)
            if process is not None and process.returncode is None:
                await asyncio.shield(process.wait())

    def _resume(self) -> None:
        if not self._is_read:
            asyncio.get_running_loop().add_reader(self._descriptor, self._read)
            self._is_read = True

    def _pause(self) -> None:
        if self._is_read:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self._is_read = False

    def _read(self) -> bool:
        """Take a piece of output; whether there may be more."""
        try:
            chunk = os.read(self._descriptor, 1 << 16)
        except BlockingIOError:
            return False
        except OSError:  # nobody holds the other end any more
            chunk = b""
        self._room -= len(chunk)
        if not chunk or self._room <= 0:
            self._pause()
        if chunk:
            self._last_output, self._is_seen = time.monotonic(), False
            self._shown.add(self._decoder.decode(chunk))
        return bool(chunk) and self._room > 0

    def _drain(self) -> None:
        while self._read():
            pass
        self._pause()
        self._shown.close()

    def _show(self, text: str) -> None:
        for line in text.splitlines(keepends=True):
            with contextlib.suppress(Exception):  # an edge: pyte raises on some sequences, and goes on after them
                self._stream.feed(line)

    def _answer(self, data: str) -> None:
        """A program asked the terminal something, where the cursor is for instance."""
        with contextlib.suppress(OSError):
            os.write(self._descriptor, data.encode())


class _Screen(pyte.Screen):
    """Keeps the lines that leave it at the top, and answers what programs ask a terminal."""

    def __init__(self, answer: Callable[[str], None]):
        super().__init__(COLUMNS, LINES)
        self._answer = answer
        self._scrolled: deque[str] = deque(maxlen=MAX_SCROLLED_LINES)
        self._num_scrolled = 0

    def index(self) -> None:
        if self.margins is None and self.cursor.y == LINES - 1:
            self._scrolled.append(self._line(0))
            self._num_scrolled += 1
        super().index()

    def write_process_input(self, data: str) -> None:
        self._answer(data)

    def take(self) -> str:
        """What `PseudoTerminal.look` gives."""
        left_out = self._num_scrolled - len(self._scrolled)
        lines = [f"[… {left_out:,} lines left out …]"] if left_out else []
        lines += [*self._scrolled, *(self._line(number) for number in range(LINES))]
        self._scrolled.clear()
        self._num_scrolled = 0
        return "\n".join(map(shown, lines)).rstrip()

    def _line(self, number: int) -> str:
        cells = self.buffer[number]
        return "".join(cells[column].data for column in range(COLUMNS)).rstrip()
