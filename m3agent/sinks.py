"""Where events go: a sink is a function of one event. Sinks compose, and never answer."""

from __future__ import annotations

from collections.abc import Callable

from m3_tools.base import DiffBlock
from m3agent.events import Event, ToolEnded

EventSink = Callable[[Event], None]


def tee(*sinks: EventSink) -> EventSink:
    """Every event to every sink, in order. The session stands first, so that what is shown is also saved."""

    def send(event: Event) -> None:
        for sink in sinks:
            sink(event)

    return send


def discard(event: Event) -> None:
    """The sink of who is not watching."""


class Recorder:
    """A sink that keeps what it gets; for tests and for reports that are made at the end."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)


class ChangedFiles:
    """A sink that remembers which files the edit tools changed, with the lines added and removed."""

    def __init__(self) -> None:
        self.paths: dict[str, tuple[int, int]] = {}

    def __call__(self, event: Event) -> None:
        if isinstance(event, ToolEnded) and not event.is_error:
            for block in event.display:
                if isinstance(block, DiffBlock):
                    lines = [line for line in block.diff.splitlines() if not line.startswith(("+++", "---"))]
                    added, removed = self.paths.get(block.path, (0, 0))
                    self.paths[block.path] = (
                        added + sum(line.startswith("+") for line in lines),
                        removed + sum(line.startswith("-") for line in lines),
                    )

    def lines(self) -> list[str]:
        """One line a file, for the person."""
        return [f"changed {path} (+{added} -{removed})" for path, (added, removed) in self.paths.items()]
