"""Where one run's events go: the session file, the view on stderr, and the result on stdout."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TextIO

from m3agent.events import Event, Notice, RunEnded, ToolOutput
from m3agent.session.store import Session, SessionStore
from m3agent.settings import Settings
from m3agent.sinks import EventSink, tee
from m3agent.ui.clean import clean
from m3agent.ui.jsonl import JsonLines, JsonResult
from m3agent.ui.plain import PlainView
from m3agent.ui.terminal import TerminalView

OutputFormat = Literal["text", "json", "stream-json"]
View = TerminalView | PlainView
MAX_SAVED_OUTPUT_CHARS = 64_000
"""Live output of one call that a session file keeps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outputs:
    """The composed sink of a run and the places that belong to it."""

    sink: EventSink
    view: View
    run_id: str
    session_path: Path
    spill_dir: Path
    """Where tools put output that is too long for the model."""


@contextmanager
def open_outputs(
    settings: Settings, *, output: OutputFormat = "text", resume: str | None = None, result: bool = True
) -> Iterator[Outputs]:
    """Open the session and the views of one run; the view gives the terminal back on every way out.

    stdout carries the result only: the summary of `RunEnded` (text), one object (json), or every event (stream-json).
    `result` is False for a chat: it has no one result, and without a terminal its answers are what stdout carries.
    Errors: M3Error when the session cannot be saved or resumed.
    """
    store = SessionStore(settings.sessions_dir, settings.secrets)
    with store.append(resume) if resume else store.create() as session:
        stream = sys.stderr if result or sys.stderr.isatty() else sys.stdout
        view = open_view(stream, show_summary=not result)
        sinks: list[EventSink] = [view]
        match output:
            case "json":
                sinks.append(JsonResult(sys.stdout, run_id=session.run_id))
            case "stream-json":
                sinks.append(JsonLines(sys.stdout))
            case "text" if result and not (isinstance(view, TerminalView) and sys.stdout.isatty()):
                sinks.append(_print_summary)
        spill_dir = settings.state_dir / "output" / session.run_id
        spill_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            yield Outputs(
                sink=_saved_first(session, tee(*sinks)),
                view=view,
                run_id=session.run_id,
                session_path=session.path,
                spill_dir=spill_dir,
            )
        finally:
            view.close()
            if not any(spill_dir.iterdir()):
                spill_dir.rmdir()


def open_view(stream: TextIO, *, show_summary: bool = False) -> View:
    """The live view on a terminal, the plain one anywhere else (and on terminals that cannot move the cursor)."""
    from rich.console import Console

    console = Console(file=stream, highlight=False, emoji=False, markup=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return TerminalView(console)
    return PlainView(stream, show_summary=show_summary)


def _saved_first(session: Session, others: EventSink) -> EventSink:
    """Save every event before it is shown. A disk that is full stops the saving, aloud, and not the run.

    Of the live output of a command the head is saved; what the model saw of it stands in the call's result.
    """
    saving = True
    left: dict[str, int] = {}

    def send(event: Event) -> None:
        nonlocal saving
        worth_saving = True
        if isinstance(event, ToolOutput):
            left[event.call_id] = left.get(event.call_id, MAX_SAVED_OUTPUT_CHARS) - len(event.text)
            worth_saving = left[event.call_id] >= 0
        if saving and worth_saving:
            try:
                session(event)
            except OSError as error:
                saving = False
                others(Notice(text=f"{session.path} is no longer saved: {error.strerror}", level="error"))
        others(event)

    return send


def _print_summary(event: Event) -> None:
    if isinstance(event, RunEnded) and event.summary.strip():
        print(clean(event.summary).rstrip("\n"), flush=True)
