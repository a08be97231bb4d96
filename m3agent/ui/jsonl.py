"""Events and results for programs: one JSON value a line on stdout."""

from __future__ import annotations

import json
from typing import Any, TextIO

from m3agent.events import Event, RunEnded, event_to_json


class JsonLines:
    """A sink that writes every event as one flushed line."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __call__(self, event: Event) -> None:
        write_json(self._stream, event_to_json(event))


class JsonResult:
    """A sink that writes one object when the run ends: exit code, outcome, summary, and the fields of the report."""

    def __init__(self, stream: TextIO, *, run_id: str):
        self._stream = stream
        self._run_id = run_id

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunEnded):
            head = {"exit_code": event.exit_code, "outcome": event.outcome, "summary": event.summary}
            write_json(self._stream, {**head, "run_id": self._run_id, "duration_s": event.duration_s, **event.report})


def write_json(stream: TextIO, value: Any) -> None:
    """One line of JSON in ASCII, which every reader can decode, flushed."""
    stream.write(json.dumps(value, separators=(",", ":")) + "\n")
    stream.flush()
