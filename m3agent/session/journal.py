"""Keeps the bytes of files before the model edits them, so that the last request can be undone."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from pathlib import Path

from m3agent.approval import EDITS
from m3agent.events import Event, ToolEnded, ToolStarted


@dataclasses.dataclass
class _Saved:
    before: bytes | None
    after: bytes | None


class EditJournal:
    """A sink that sees each edit before and after it happens. git, its index and its refs are not touched.

    Not covered: files that a command changed.
    """

    def __init__(self, root: Path):
        self._root = root.resolve()
        self._turns: list[dict[Path, _Saved]] = []
        self._calls: dict[str, Path] = {}

    def begin(self) -> None:
        """A new request of the person: `undo` takes back what follows."""
        self._turns.append({})

    def __call__(self, event: Event) -> None:
        if isinstance(event, ToolStarted) and event.name in EDITS and self._turns:
            path = self._inside(event.arguments.get("path"))
            if path is not None:
                self._calls[event.call_id] = path
                self._turns[-1].setdefault(path, _Saved(before=_read(path), after=None))
        elif isinstance(event, ToolEnded) and (done := self._calls.pop(event.call_id, None)) is not None:
            self._turns[-1][done].after = _read(done)

    def undo(self) -> list[str]:
        """Put the files of the last request back; returns one line per file.

        A file that somebody else changed since then is left as it is, and the line says so.
        """
        while self._turns:
            changed = {path: saved for path, saved in self._turns.pop().items() if saved.before != saved.after}
            if changed:
                return [self._restore(path, saved) for path, saved in changed.items()]
        return []

    def _restore(self, path: Path, saved: _Saved) -> str:
        name = path.relative_to(self._root).as_posix()
        if _read(path) != saved.after:
            return f"{name} was changed since then and is left as it is"
        if saved.before is None:
            path.unlink()
            return f"{name} was removed again"
        _write(path, saved.before)
        return f"{name} is as it was"

    def _inside(self, value: object) -> Path | None:
        """The file that the argument names, when it lies in the work tree."""
        if not isinstance(value, str) or "\0" in value:
            return None
        path = (self._root / value).resolve()
        return path if path.is_relative_to(self._root) else None


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None


def _write(path: Path, data: bytes) -> None:
    """Replace the file whole, keeping its mode."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".m3-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if path.exists():
            os.chmod(name, path.stat().st_mode & 0o7777)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
