"""The view without a terminal: every finished thing once, as plain lines; nothing moves, nothing is coloured."""

from __future__ import annotations

from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from m3agent.events import (
    AnswerText,
    Event,
    MessageAdded,
    Prefill,
    RunEnded,
    Said,
    ThinkText,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)
from m3agent.ui.clean import clean, one_line, visible, with_bounded_words
from m3agent.ui.render import render, tool_ended

WIDTH = 120


class PlainView:
    """A sink that writes lines to `stream`. `show_summary` is False where the summary is printed as the result.

    With `tells_activity` it says once what begins: that the model reads, thinks, or that a tool runs.
    """

    def __init__(self, stream: TextIO, *, width: int = WIDTH, show_summary: bool = False, tells_activity: bool = False):
        self._show_summary, self._tells_activity = show_summary, tells_activity
        self._activity = ""
        self._stream = stream
        self._console = Console(file=stream, width=width, no_color=True, force_terminal=False, highlight=False)
        self._calls: dict[str, ToolStarted] = {}

    def __call__(self, event: Event) -> None:
        if self._tells_activity:
            self._tell_activity(event)
        shown = render(event)
        match event:
            case MessageAdded() if event.message.role == "assistant" and event.message.text.strip():
                shown = _indented(with_bounded_words(clean(event.message.text)))
            case Said():
                shown = None  # a pipe is not told what it said
            case ToolStarted():
                self._calls[event.call_id] = event
            case ToolEnded():
                started = self._calls.pop(event.call_id, None)
                shown = tool_ended(event, started.arguments if started else None)
            case Prefill() if event.total_tokens >= 10_000 and event.done_tokens == event.total_tokens:
                shown = Text(f"  · read {event.total_tokens:,} tokens")
            case RunEnded() if self._show_summary and shown is not None and event.summary.strip():
                shown = Group(shown, _indented(clean(event.summary)))
        if shown is not None:
            self.print(shown)

    def print(self, shown: RenderableType) -> None:
        """Write something as lines."""
        with self._console.capture() as drawn:
            self._console.print(shown, markup=False, emoji=False)
        self._stream.write("".join(line.rstrip() + "\n" for line in drawn.get().splitlines()))
        self._stream.flush()

    def tell(self, line: str) -> None:
        self.print(Text(visible(line)))

    def _tell_activity(self, event: Event) -> None:
        match event:
            case TurnStarted():
                activity = "reads…"
            case ThinkText():
                activity = "thinks…"
            case AnswerText():
                activity = "writes…"
            case ToolStarted():
                activity = f"runs {one_line(event.name, 40)}…"
            case _:
                return
        if activity != self._activity:
            self._activity = activity
            self.tell(f"  {activity}")

    def close(self) -> None:
        """Nothing is open."""


def _indented(text: str) -> Padding:
    """Under the line before it, also where it is folded."""
    return Padding(Text(text.strip()), (0, 0, 0, 2))
