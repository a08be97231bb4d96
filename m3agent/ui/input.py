"""What is typed or piped into a chat before, or instead of, a draft on the screen."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Protocol


class LineInput(Protocol):
    """Gives one message at a time; None at the end."""

    async def read(self) -> str | None: ...

    def messages(self) -> list[str]:
        """What was said meanwhile and may be read by the turn that runs."""
        ...


class PipeInput:
    """The lines of stdin. The thread that reads is a daemon, so that an interrupt need not wait for a line."""

    async def read(self) -> str | None:
        line = await in_daemon_thread(sys.stdin.readline)
        return line.rstrip("\n") if line else None

    def messages(self) -> list[str]:
        """A pipe does not steer: its lines are answered one after the other."""
        return []


async def in_daemon_thread(function: Callable[[], str]) -> str:
    """The function's result, computed in a thread that never keeps the program from ending."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[str] = loop.create_future()

    def finish(value: str) -> None:
        if not result.done():
            result.set_result(value)

    def work() -> None:
        value = function()
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, value)

    threading.Thread(target=work, daemon=True).start()
    return await result


@contextlib.contextmanager
def unechoed() -> Iterator[None]:
    """The terminal keeps what is typed for later and does not show it, so that it does not run into what is printed."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield
        return
    import termios

    before = termios.tcgetattr(sys.stdin)
    quiet = [*before]
    quiet[3] = before[3] & ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSANOW, before)
