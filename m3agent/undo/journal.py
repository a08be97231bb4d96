"""Records steps while the agent works, and undoes and redoes them afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from m3agent.approval import HARMLESS
from m3agent.errors import M3Error
from m3agent.git import GitFailed
from m3agent.undo.history import History, Step, locked, read_history, write_history
from m3agent.undo.restore import move, step_states
from m3agent.undo.shadow import Shadow, Snapshot

MAX_BYTES = 2**30
"""What the snapshots of one work tree may take; the oldest steps are forgotten first."""
MAX_STEPS = 1000
CHECK_EVERY = 16
"""Steps between two looks at the size."""
UNDONE = {"step": "undone", "removed": "was removed again", "made": "is back", "changed": "is as it was"}
REDONE = {"step": "redone", "removed": "is removed again", "made": "is made again", "changed": "is changed again"}
MAX_LABEL_CHARS = 100


class UndoJournal:
    """The steps of one work tree. `warn` is told once when snapshots cannot be made; the agent goes on without."""

    def __init__(
        self, state_dir: Path, root: Path, *, request: str = "", warn: Callable[[str], None] | None = None,
        max_bytes: int = MAX_BYTES,
    ):  # fmt: skip
        self._shadow = Shadow(state_dir, root)
        self._folder, self._request, self._max_bytes = self._shadow.folder, request, max_bytes
        self._warn = warn or (lambda text: None)
        self._works = True

    def begin_request(self) -> str:
        """What follows belongs to a new request of the person; returns its name."""
        self._request = f"{self._request.partition('/')[0]}/{uuid.uuid4().hex[:8]}"
        return self._request

    @contextlib.asynccontextmanager
    async def around(self, name: str, arguments: Mapping[str, Any]) -> AsyncIterator[None]:
        """Around a call of the tool `name`: what changed within the block is one step, however the block ends."""
        if name in HARMLESS:
            yield
            return
        before = await asyncio.to_thread(self._snapshot)
        try:
            yield
        finally:
            # No await: an interrupted call must be undoable, too.
            self._record(_label(name, arguments), before)

    @contextlib.contextmanager
    def step(self, label: str) -> Iterator[None]:
        """What changed within the block is one step, however the block ends."""
        before = self._snapshot()
        try:
            yield
        finally:
            self._record(label, before)

    def changed_files(self) -> list[str]:
        """The files that this run changed so far, by whichever tool."""
        run = self._request.partition("/")[0]
        history = self.history()
        steps = (step for step in history.steps[: history.applied] if step.request.partition("/")[0] == run)
        return sorted({name for step in steps for name in step.modes})

    def history(self) -> History:
        """The steps, oldest first."""
        return read_history(self._folder)

    def undo(self) -> list[str]:
        """Take the last step back; returns lines for the person, none if there is no step.

        Errors: M3Error when a file was changed since; nothing is touched then.
        """
        return self._move(-1)

    def undo_request(self, among: Collection[str] | None = None) -> list[str]:
        """Take back all steps of the last request of a person: a whole run, or one message of a chat and its work.

        `among` names the requests that may be taken back; what others did is left alone then. Errors as with `undo`, if
        not even the last step can be taken back.
        """
        history = self.history()
        last = history.steps[history.applied - 1].request if history.applied else ""
        if not history.applied or (among is not None and last not in among):
            return []
        lines = self.undo()
        while (history := self.history()).applied and history.steps[history.applied - 1].request == last:
            try:
                lines += self.undo()
            except M3Error as error:
                return [*lines, f"not further: {error}"]
        return lines

    def undo_requests(self, requests: Collection[str]) -> list[str]:
        """Take back every step of these requests, or none; returns lines for the person.

        Errors: M3Error when another run changed something after them, or a file was changed since. Nothing is touched
        then: steps that were taken back already are done again.
        """
        history = self.history()
        steps = history.steps[: history.applied]
        mine = [index for index, step in enumerate(steps) if step.request in requests]
        if not mine:
            return []
        later = [step for step in steps[mine[0] :] if step.request not in requests]
        if later:
            raise M3Error(f"something else changed files since then ({later[-1].label}); nothing was touched")
        lines: list[str] = []
        for done in range(len(mine)):
            try:
                lines += self.undo()
            except M3Error:
                for _ in range(done):
                    self.redo()
                raise
        return lines

    def redo(self) -> list[str]:
        """Do again what the last undo took back; lines and errors as with `undo`."""
        return self._move(1)

    def _move(self, direction: int) -> list[str]:
        with locked(self._folder):
            history = self.history()
            index = history.applied - 1 if direction < 0 else history.applied
            if not 0 <= index < len(history.steps):
                return []
            step = history.steps[index]
            try:
                before, after = step_states(self._shadow, step)
                files = move(self._shadow, after, before) if direction < 0 else move(self._shadow, before, after)
            except GitFailed as error:
                raise M3Error(f"the snapshot of this step cannot be read: {error}; nothing was touched") from error
            write_history(self._folder, History(steps=history.steps, applied=history.applied + direction))
        words = UNDONE if direction < 0 else REDONE
        return [f"{words['step']}: {step.label}", *(f"  {name} {words[change]}" for name, change in files)]

    def _snapshot(self) -> Snapshot | None:
        if not self._works:
            return None
        try:
            with locked(self._folder):
                return self._shadow.snapshot()
        except (GitFailed, M3Error, OSError) as error:
            self._works = False
            self._warn(f"m3 undo cannot take back what follows: {error}")
            return None

    def _record(self, label: str, before: Snapshot | None) -> None:
        after = self._snapshot() if before is not None else None
        if before is None or after is None:
            return
        names = set(self._shadow.changed_names(before.tree, after.tree))
        names |= {n for n in before.modes.keys() & after.modes.keys() if before.modes[n] != after.modes[n]}
        # What was ignored before is the person's, also if the step made git see it.
        names = {n for n in names if n in before.modes or not before.ignores(n)}
        if not names:
            return
        modes = {name: (before.modes.get(name), after.modes.get(name)) for name in sorted(names)}
        try:
            with locked(self._folder):
                history = self.history().with_step(label, self._request, before.tree, after.tree, modes)
                step = history.steps[-1]
                self._shadow.keep(f"{step.number}/before", step.before)
                self._shadow.keep(f"{step.number}/after", step.after)
                write_history(self._folder, self._capped(history))
        except (GitFailed, M3Error, OSError) as error:  # the change itself was made, and its result must be told
            self._works = False
            self._warn(f"m3 undo cannot take back what follows: {error}")

    def _capped(self, history: History) -> History:
        """Forget the older half while the store is too large."""
        if history.steps[-1].number % CHECK_EVERY:
            return history
        while len(history.steps) > 1 and (
            len(history.steps) > MAX_STEPS or self._shadow.size_bytes() > self._max_bytes
        ):
            history = history.without_oldest((len(history.steps) + 1) // 2)
            self._shadow.prune(f"{step.number}/{side}" for step in history.steps for side in ("before", "after"))
        return history


def describe(step: Step) -> str:
    """The step on one line."""
    count = len(step.modes)
    return f"{count} {'file ' if count == 1 else 'files'}  {step.label}"


def _label(name: str, arguments: Mapping[str, Any]) -> str:
    about = next((str(arguments[key]) for key in ("command", "path") if arguments.get(key)), "")
    line = " ".join(f"{name} {about}".split())
    return line if len(line) <= MAX_LABEL_CHARS else f"{line[: MAX_LABEL_CHARS - 1]}…"
