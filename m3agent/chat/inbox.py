"""What a person said and nobody has read yet: it waits in order, and an interrupt never loses it."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import deque


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Line:
    text: str
    later: bool
    """Whether the turn that runs must not read it."""


class Inbox:
    """Lines for the chat. A message may be read early, by the turn that runs; commands wait for their place."""

    def __init__(self) -> None:
        self._lines: deque[_Line] = deque()
        self._changed = asyncio.Event()
        self._closed = self._held = False

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(line.text for line in self._lines)

    def put(self, line: str, *, later: bool = False) -> None:
        """Add a line and let everything go on that was held. An empty line only does the latter.

        `later`: it waits for its place as a command does, and what comes after it waits, too.
        """
        if line.strip():
            self._lines.append(_Line(text=line, later=later or line.startswith(("/", "!"))))
        self._held = False
        self._changed.set()

    def hold(self) -> None:
        """Keep what waits until the person says something again: after an interrupt nothing starts by itself."""
        self._held = bool(self._lines)

    def close(self) -> None:
        """No more lines come; those that wait are not read."""
        self._closed = True
        self._changed.set()

    def take_back(self) -> str:
        """The newest waiting line, to be changed by who said it; empty if none waits."""
        return self._lines.pop().text if self._lines else ""

    def messages(self) -> list[str]:
        """The waiting lines up to the first that is for later, for the turn that runs."""
        found: list[str] = []
        while self._lines and not self._held and not self._lines[0].later:
            found.append(self._lines.popleft().text)
        return found

    async def read(self) -> str | None:
        """The next line once there is one; None at the end."""
        while not self._closed:
            if self._lines and not self._held:
                return self._lines.popleft().text
            self._changed.clear()
            await self._changed.wait()
        return None
