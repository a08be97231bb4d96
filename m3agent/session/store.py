"""Session files: one JSON event a line, flushed as it happens; a run that is killed loses at most its last line."""

from __future__ import annotations

import dataclasses
import datetime
import fcntl
import json
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

from m3_tools.secret import Secrets
from m3agent.errors import M3Error
from m3agent.events import Event, RunEnded, RunStarted, event_from_json, event_to_json

LOCK_PATIENCE_S = 1.0
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}")


def new_run_id() -> str:
    """A name that sorts by time, also within a second: `20260930-141503-9f3a` ends with parts of it, 15 us each."""
    time.sleep(2e-5)  # the next name is another one
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y%m%d-%H%M%S}-{now.microsecond * 0x10000 // 1_000_000:04x}"


class Session:
    """An open session file. It is a sink: `session(event)` returns when the line is with the operating system.

    What `secrets` knows is redacted in it. Errors: OSError, and M3Error when another process has it open.
    """

    def __init__(self, path: Path, secrets: Secrets):
        self.path, self._secrets = path, secrets
        self._file = open(path, "ab", buffering=0, opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115
        if not self._locked():
            self._file.close()
            raise M3Error(f"the session {path.stem} is open in another m3; leave it there first")

    def _locked(self) -> bool:
        """Take the lock. An m3 that was killed just now may have left a child that has not begun its program yet, and
        holds the lock until then.
        """
        until = time.monotonic() + LOCK_PATIENCE_S
        while True:
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    return False
                time.sleep(0.02)
            else:
                return True

    @property
    def run_id(self) -> str:
        return self.path.stem

    def __call__(self, event: Event) -> None:
        value = self._secrets.redact_json(event_to_json(event))
        self._file.write(json.dumps(value, separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recording:
    """A session read back. `torn` says that the last line was cut off and dropped."""

    run_id: str
    events: tuple[Event, ...]
    torn: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """One line about a session. `outcome` is empty for a run that did not end by itself."""

    run_id: str
    command: str
    model: str
    repo: str
    task: str
    outcome: str
    size_bytes: int


class SessionStore:
    """The session files in one folder; `secrets` are redacted in those that it writes."""

    def __init__(self, folder: Path, secrets: Secrets = Secrets()):
        self._folder, self._secrets = folder, secrets

    def create(self, run_id: str | None = None) -> Session:
        """A new, empty session. Errors: M3Error when the folder cannot be written."""
        path = self._path(run_id or new_run_id())
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return Session(path, self._secrets)
        except OSError as error:
            raise M3Error(f"sessions cannot be saved in {self._folder}: {error.strerror}. Set M3_HOME.") from error

    def create_with(self, events: Iterable[Event], run_id: str) -> Session:
        """A new session that holds these events already. It is there whole, or not at all.

        Errors: M3Error when it cannot be written.
        """
        path = self._path(run_id)
        unfinished = path.with_suffix(".new")
        try:
            with Session(unfinished, self._secrets) as session:
                for event in events:
                    session(event)
            os.replace(unfinished, path)
            return Session(path, self._secrets)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            raise M3Error(f"{path} cannot be written: {error.strerror}") from error

    def append(self, run_id: str) -> Session:
        """An existing session, to be continued. A torn last line is removed first, so that the file stays readable."""
        path = self._existing(run_id)
        session = Session(path, self._secrets)
        whole = path.read_bytes()
        keep = whole.rfind(b"\n") + 1
        if keep < len(whole):
            os.truncate(path, keep)
        return session

    def read(self, run_id: str) -> Recording:
        """Every whole event of a session.

        Errors: M3Error when there is none of this name, or a line before the last is damaged.
        """
        path = self._existing(run_id)
        lines = path.read_bytes().split(b"\n")
        rest = lines.pop()
        events: list[Event] = []
        for number, line in enumerate(lines, start=1):
            try:
                events.append(event_from_json(json.loads(line)))
            except (ValueError, KeyError, TypeError) as error:
                raise M3Error(f"{path}, line {number} is no event: {error}") from error
        return Recording(run_id=path.stem, events=tuple(events), torn=bool(rest))

    def list(self) -> Iterator[Summary]:
        """All sessions, newest first. A file that cannot be read is passed over."""
        for path in sorted(self._folder.glob("*.jsonl"), reverse=True):
            try:
                first, last = _first_and_last(path)
            except (OSError, ValueError, KeyError, TypeError):
                continue
            if isinstance(first, RunStarted):
                yield Summary(
                    run_id=path.stem,
                    command=first.command,
                    model=first.model,
                    repo=first.repo,
                    task=first.task,
                    outcome=last.outcome if isinstance(last, RunEnded) else "",
                    size_bytes=path.stat().st_size,
                )

    def remove(self, run_id: str) -> str:
        """Delete a session for good; returns its whole id."""
        path = self._existing(run_id)
        path.unlink()
        return path.stem

    def _path(self, run_id: str) -> Path:
        if not RUN_ID.fullmatch(run_id):
            raise M3Error(f"{run_id!r} is no session id; `m3 sessions list` shows them")
        return self._folder / f"{run_id}.jsonl"

    def _existing(self, run_id: str) -> Path:
        """The file of a session; the beginning of an id is enough when only one fits."""
        path = self._path(run_id)
        if path.exists():
            return path
        found = sorted(self._folder.glob(f"{run_id}*.jsonl"))
        if len(found) != 1:
            what = f"{len(found)} sessions begin with" if found else "there is no session"
            raise M3Error(f"{what} {run_id!r}; `m3 sessions list` shows them")
        return found[0]


def _first_and_last(path: Path) -> tuple[Event, Event | None]:
    """The first event and the last whole one, without reading what lies between."""
    with path.open("rb") as file:
        first = event_from_json(json.loads(file.readline()))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 262_144))
        lines = file.read().split(b"\n")[:-1]
    if not lines:
        return first, None
    try:
        return first, event_from_json(json.loads(lines[-1]))
    except (ValueError, KeyError, TypeError):
        return first, None
