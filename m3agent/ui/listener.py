"""Who hears what a person does at the screen of a chat."""

from __future__ import annotations

from typing import Protocol

from rich.text import Text

from m3agent.ui.pictures import Taker


def is_command(line: str) -> bool:
    """Whether the line is meant for the chat itself, also a mistyped one, and so no answer and no message."""
    return line.startswith("/")


class Listener(Taker, Protocol):
    @property
    def working(self) -> bool: ...

    @property
    def busy(self) -> bool:
        """Whether there is something to stop: what works, or a question aside."""
        ...

    @property
    def mode(self) -> str: ...

    @property
    def queued(self) -> tuple[str, ...]:
        """The lines that wait for their turn."""
        ...

    def submit(self, line: str, *, later: bool = False) -> None:
        """A line was sent. `later`: not for what runs now, but after it."""
        ...

    def stop(self) -> None:
        """Stop a question aside, else what works; nothing happens when nothing runs."""
        ...

    def leave(self) -> None: ...

    def next_mode(self) -> None: ...

    def expand(self) -> None:
        """Show whole what was folded last."""
        ...

    def take_back(self) -> str:
        """The newest line that waits, which then waits no more."""
        ...

    def status(self) -> Text:
        """The line at the bottom."""
        ...
