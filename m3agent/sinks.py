"""Where events go: a sink is a function of one event. Sinks compose, and never answer."""

from __future__ import annotations

from collections.abc import Callable

from m3agent.events import Event

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
