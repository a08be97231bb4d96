"""Where a live view draws: finished things once into the scrollback, and below them a few lines that change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rich.console import Console, RenderableType
from rich.live import Live

REDRAWS_PER_SECOND = 8


class Surface(Protocol):
    def print(self, shown: RenderableType) -> None:
        """Put something into the scrollback, for good."""
        ...

    def show(self, frame: Callable[[], RenderableType]) -> None:
        """Draw the frame below what was printed, and again as it changes, until `hide`."""
        ...

    def hide(self) -> None:
        """Take the frame away. It may be called without one."""
        ...


class LiveSurface:
    """Rich's live display: for a run that nobody types into."""

    def __init__(self, console: Console):
        self._console = console
        self._live: Live | None = None

    def print(self, shown: RenderableType) -> None:
        self._console.print(shown, markup=False, highlight=False, emoji=False)

    def show(self, frame: Callable[[], RenderableType]) -> None:
        if self._live is None and self._console.is_terminal:
            self._live = Live(
                console=self._console,
                get_renderable=frame,
                refresh_per_second=REDRAWS_PER_SECOND,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
                vertical_overflow="crop",
            )
            self._live.start()

    def hide(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
