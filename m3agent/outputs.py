"""Where one run's events go: the session file, the view on stderr, and the result on stdout."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, TextIO

from rich.console import Console

from m3agent.events import Event, Notice, RunEnded, ToolOutput
from m3agent.session.store import Session, SessionStore
from m3agent.settings import Settings
from m3agent.sinks import EventSink, tee
from m3agent.ui.clean import clean
from m3agent.ui.graphics import Graphics
from m3agent.ui.jsonl import JsonLines, JsonResult
from m3agent.ui.plain import PlainView
from m3agent.ui.terminal import TerminalView

OutputFormat = Literal["text", "json", "stream-json"]
View = TerminalView | PlainView
MAX_SAVED_OUTPUT_CHARS = 64_000
"""Live output of one call that a session file keeps."""


class Outputs:
    """Where the events of a run go, and the places that belong to it.

    Every event is saved before it is shown. A disk that is full stops the saving, aloud, and not the run. Of the live
    output of a command the head is saved; what the model saw of it stands in the call's result.
    """

    def __init__(self, store: SessionStore, session: Session, view: View, shown: EventSink, folder: Path):
        """`shown` gets every event after it was saved; `folder` holds the spilled output of all runs."""
        self.view = view
        self._store, self._session, self._shown, self._folder = store, session, shown, folder
        self._saving = True
        self._left: dict[str, int] = {}
        self.spill_dir.mkdir(parents=True, exist_ok=True, mode=0o700)

    @property
    def run_id(self) -> str:
        return self._session.run_id

    @property
    def session_path(self) -> Path:
        return self._session.path

    @property
    def spill_dir(self) -> Path:
        """Where tools put output that is too long for the model."""
        return self._folder / self.run_id

    def sink(self, event: Event) -> None:
        worth_saving = True
        if isinstance(event, ToolOutput):
            self._left[event.call_id] = self._left.get(event.call_id, MAX_SAVED_OUTPUT_CHARS) - len(event.text)
            worth_saving = self._left[event.call_id] >= 0
        if self._saving and worth_saving:
            try:
                self._session(event)
            except OSError as error:
                self._saving = False
                self._shown(Notice(text=f"{self.session_path} is no longer saved: {error.strerror}", level="error"))
        self._shown(event)

    def branch(self, run_id: str, events: Iterable[Event]) -> None:
        """Go on in a new session that begins with these events; the one before ends here and stays as it is.

        What its tools spilled can be read from the new one, too. Errors: M3Error, and nothing has changed, when the
        new one cannot be written.
        """
        before, spilled = self._session, self.spill_dir
        self._session = self._store.create_with(events, run_id)
        self._saving = True
        self.spill_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in spilled.iterdir():
            os.link(path, self.spill_dir / path.name)
        if not any(spilled.iterdir()):
            spilled.rmdir()
        with contextlib.suppress(OSError), before:
            before(RunEnded(exit_code=0, outcome="left", summary=f"goes on as {run_id}", duration_s=0))

    def close(self) -> None:
        """Give the terminal back and end the session."""
        self.view.close()
        self._session.close()
        if not any(self.spill_dir.iterdir()):
            self.spill_dir.rmdir()


@contextlib.contextmanager
def open_outputs(
    settings: Settings, *, output: OutputFormat = "text", resume: str | None = None, result: bool = True
) -> Iterator[Outputs]:
    """Open the session and the views of one run; the view gives the terminal back on every way out.

    stdout carries the result only: the summary of `RunEnded` (text), one object (json), or every event (stream-json).
    `result` is False for a chat: it has no one result, and without a terminal its answers are what stdout carries.
    Errors: M3Error when the session cannot be saved or resumed.
    """
    store = SessionStore(settings.sessions_dir, settings.secrets)
    session = store.append(resume) if resume else store.create()
    stream = sys.stderr if result or sys.stderr.isatty() else sys.stdout
    view = open_view(stream, settings, show_summary=not result, thumbnails=settings.thumbnails)
    sinks: list[EventSink] = [view]
    match output:
        case "json":
            sinks.append(JsonResult(sys.stdout, run_id=session.run_id))
        case "stream-json":
            sinks.append(JsonLines(sys.stdout))
        case "text" if result and not (isinstance(view, TerminalView) and sys.stdout.isatty()):
            sinks.append(_print_summary)
    with contextlib.closing(Outputs(store, session, view, tee(*sinks), settings.state_dir / "output")) as outputs:
        yield outputs


def open_view(stream: TextIO, settings: Settings, *, show_summary: bool = False, thumbnails: Graphics = "off") -> View:
    """The live view on a terminal; the plain one anywhere else, on terminals that cannot move the cursor, and where
    nothing may be drawn twice.

    A saved session gets no `thumbnails`: what its pictures are called and where they lie is only what its file says.
    """
    console = _console(stream)
    if draws_live(stream, settings):
        return TerminalView(console, theme=settings.theme, hyperlinks=settings.hyperlinks, thumbnails=thumbnails)
    if console.is_terminal:
        return PlainView(stream, width=console.width, show_summary=show_summary, tells_activity=True)
    return PlainView(stream, show_summary=show_summary)


def draws_live(stream: TextIO, settings: Settings) -> bool:
    """Whether the view of this stream draws lines that change."""
    console = _console(stream)
    return console.is_terminal and not console.is_dumb_terminal and not settings.screen_reader


def _console(stream: TextIO) -> Console:
    return Console(file=stream, highlight=False, emoji=False, markup=False)


def _print_summary(event: Event) -> None:
    if isinstance(event, RunEnded) and event.summary.strip():
        print(clean(event.summary).rstrip("\n"), flush=True)
