"""Where a chat's messages come from: a line editor at a terminal, the lines of stdin elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

COMMANDS = {
    "/help": "what can be typed here",
    "/model": "which model answers; /model NAME changes it",
    "/mode": "plan, ask, edit or auto",
    "/undo": "put back the files that the last request changed",
    "/quit": "leave (Ctrl-D)",
}


class LineInput(Protocol):
    """Gives one message at a time; None at the end."""

    async def read(self, prompt: str) -> str | None: ...


class TerminalInput:
    """prompt_toolkit's editor: history of this repository, completion of commands, Alt+Enter for a new line."""

    def __init__(self, state_dir: Path, repo: Path):
        from prompt_toolkit import PromptSession
        from prompt_toolkit.completion import WordCompleter
        from prompt_toolkit.history import FileHistory
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

        folder = state_dir / "history"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        keys = KeyBindings()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        self._session: PromptSession[str] = PromptSession(
            history=FileHistory(str(folder / hashlib.sha256(str(repo).encode()).hexdigest()[:16])),
            completer=WordCompleter(list(COMMANDS), sentence=True, meta_dict=dict(COMMANDS)),
            complete_while_typing=True,
            key_bindings=keys,
        )

    async def read(self, prompt: str) -> str | None:
        """The next message. Ctrl-C clears a draft, and on an empty line leaves; Ctrl-D leaves."""
        while True:
            try:
                return await self._session.prompt_async(prompt, handle_sigint=False)
            except EOFError:
                return None
            except KeyboardInterrupt:
                if not self._session.default_buffer.text:
                    return None


class PipeInput:
    """The lines of stdin. The thread that reads is a daemon, so that an interrupt need not wait for a line."""

    async def read(self, prompt: str) -> str | None:
        line = await in_daemon_thread(sys.stdin.readline)
        return line.rstrip("\n") if line else None


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
