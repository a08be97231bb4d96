"""A chat in plain lines at a terminal that draws nothing twice: for screen readers, and for dumb terminals.

What is typed is the terminal's own business until Enter. Nothing moves, and whatever changes is told once.
"""

from __future__ import annotations

import asyncio
import sys

from rich.console import RenderableType

from m3agent.ui.face import Face
from m3agent.ui.input import in_daemon_thread
from m3agent.ui.listener import Listener, is_command
from m3agent.ui.plain import PlainView


class Lines(Face):
    """Hands every line to the listener, or to the question that waits. `run` must be running."""

    def __init__(self, view: PlainView, listener: Listener):
        self._view, self._listener = view, listener
        self._answer: asyncio.Future[str] | None = None
        self._asks_for_text = False

    async def run(self) -> None:
        """Read until the end of the input."""
        while line := await in_daemon_thread(sys.stdin.readline):
            text = line.rstrip("\n")
            is_answer = self._asks_for_text or not is_command(text)
            if self._answer is not None and not self._answer.done() and is_answer:
                if text.strip():
                    self._answer.set_result(text)
            elif text.strip():
                self._listener.submit(text)
            elif not self._listener.working:
                self.idle()
        self._listener.leave()

    def show(self, shown: RenderableType) -> None:
        self._view.print(shown)

    async def ask(self, question: str, draft: str = "") -> str:
        """Wait for the answer to a question; what it begins with is shown, for there is no draft to put it into."""
        if draft:
            self._view.tell(f"it is now: {draft}")
        self._view.tell(f"waiting for you: {question}")
        self._answer, self._asks_for_text = asyncio.get_running_loop().create_future(), bool(draft)
        try:
            return await self._answer
        finally:
            self._answer = None

    def idle(self) -> None:
        """Say that a message can be written, in which mode."""
        self._view.tell(f"{self._listener.mode}> write a message, /help, or /quit")
