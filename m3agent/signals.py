"""Runs a command's coroutine to its end: errors become one line and an exit code, signals a clean cancellation."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from m3agent.errors import M3Error
from m3agent.exits import Exit


def run_command(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    """Run `main()` and return the exit code of the process.

    SIGINT and SIGTERM cancel the coroutine, whose `finally` blocks run (worktrees removed, processes killed, session
    closed), and give 130 and 143. A second signal ends the process at once. M3Error and ModelError become one line on
    stderr and their exit code.
    """
    try:
        return asyncio.run(_supervise(main))
    except M3Error as error:
        return fail(str(error), error.exit_code)


async def _supervise(main: Callable[[], Coroutine[Any, Any, int]]) -> int:
    from m3agent.llm.protocol import ModelError

    loop = asyncio.get_running_loop()
    task = loop.create_task(main())
    received: list[signal.Signals] = []

    def on_signal(number: signal.Signals) -> None:
        received.append(number)
        task.cancel(number.name)
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return int(Exit.TERMINATED if received[0] == signal.SIGTERM else Exit.INTERRUPTED)
    except ModelError as error:
        return fail(str(error), model_exit(error))


def interrupt_exit(error: asyncio.CancelledError) -> Exit:
    """The exit code that the cancellation of a command stands for: 143 for SIGTERM, else 130."""
    return Exit.TERMINATED if error.args == ("SIGTERM",) else Exit.INTERRUPTED


def model_exit(error: Exception) -> Exit:
    """The exit code for an error of the model."""
    from m3agent.llm.protocol import ContextFull, Refused

    if isinstance(error, ContextFull):
        return Exit.BUDGET
    return Exit.USAGE if isinstance(error, Refused) else Exit.MODEL_UNAVAILABLE


def fail(message: str, code: int) -> int:
    """Write the one line that says what to do, and return the exit code."""
    line = " ".join(part.strip() for part in message.splitlines() if part.strip())
    printable = "".join(c for c in line if c.isprintable())
    print(f"m3: {printable}", file=sys.stderr, flush=True)
    return int(code)
