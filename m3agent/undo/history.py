"""The steps that can be undone and redone, as a small file beside the snapshots."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from m3_tools.atomic import write_atomic
from m3agent.errors import M3Error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Step:
    """One change: `modes` maps each file to its permissions before and after, None where it did not exist."""

    number: int
    label: str
    request: str
    time: float
    before: str
    after: str
    modes: dict[str, tuple[int | None, int | None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """Steps in their order. The first `applied` of them are in effect; those behind were undone."""

    steps: tuple[Step, ...] = ()
    applied: int = 0

    def with_step(self, label: str, request: str, before: str, after: str, modes: Any) -> History:
        """One step more; what was undone before it can no longer be redone."""
        kept = self.steps[: self.applied]
        number = kept[-1].number + 1 if kept else 1
        step = Step(
            number=number, label=label, request=request, time=time.time(), before=before, after=after, modes=modes
        )
        return History(steps=(*kept, step), applied=len(kept) + 1)

    def without_oldest(self, count: int) -> History:
        return History(steps=self.steps[count:], applied=max(0, self.applied - count))


def read_history(folder: Path) -> History:
    """The history in `folder`, empty if there is none. Raises M3Error for a file that cannot be read."""
    path = folder / "steps.json"
    try:
        values = json.loads(path.read_text("utf-8"))
        steps = tuple(Step(**{**step, "modes": {k: tuple(v) for k, v in step["modes"].items()}}) for step in values[1])
        return History(steps=steps, applied=int(values[0]))
    except FileNotFoundError:
        return History()
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise M3Error(f"{path} cannot be read ({error}); remove its folder to start a new history") from error


def write_history(folder: Path, history: History) -> None:
    """Replace the file whole."""
    text = json.dumps([history.applied, [dataclasses.asdict(step) for step in history.steps]])
    write_atomic(folder / "steps.json", text.encode())


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time works with the history and the index of snapshots."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folder / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
