"""A saved session through a view: the same events, the same code that drew them first."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from m3agent.events import Event, Notice
from m3agent.session.store import Recording


class View(Protocol):
    """A sink that holds a terminal."""

    def __call__(self, event: Event) -> None: ...

    def close(self) -> None: ...


def replay(
    recording: Recording, view: View, *, pause_s: float = 0.0, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Send every event of a recording to the view, with a pause after each. The view is closed on every way out."""
    try:
        for event in recording.events:
            view(event)
            if pause_s:
                sleep(pause_s)
        if recording.torn:
            view(Notice(text="the session was cut off here; its last line was not whole", level="warning"))
    finally:
        view.close()
