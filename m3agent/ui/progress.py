"""What is going on, as one line that changes: the activity, how far it is, how long it has been so."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import RenderableType
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from m3agent.ui.render import seconds

ACTIVITIES = frozenset({"reads", "thinks", "runs"})
"""Activities with a style of their own; everything else has that of `accent`."""
_SURE_AFTER_S = 0.5
"""A speed that was measured over less time is not told."""


class Progress:
    """One activity at a time, counted from its beginning."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._spinner = Spinner("dots", style="accent")
        self._activity = ""
        self._since = clock()
        self._done_of_total: tuple[int, int] | None = None
        self._read_from: tuple[float, int] | None = None

    def begin(self, activity: str) -> None:
        """Something else goes on from now; without a name it is whatever `line` is told."""
        self._activity, self._since = activity, self._clock()
        self._done_of_total = self._read_from = None

    def read(self, done: int, total: int) -> None:
        """So many tokens of a prompt have been read."""
        self._done_of_total = (done, total)
        if self._read_from is None:
            self._read_from = (self._clock(), done)

    @property
    def lasted_s(self) -> float:
        return self._clock() - self._since

    def line(self, otherwise: str, *details: str) -> RenderableType:
        """The line: `otherwise` stands for an activity without a name."""
        activity = self._activity or otherwise
        text = Text(activity, activity if activity in ACTIVITIES else "accent", no_wrap=True, overflow="ellipsis")
        for detail in (*details, *self._reading(), f"{self.lasted_s:.0f} s"):
            text.append(f" · {detail}", "quiet")
        line = Table.grid(padding=(0, 1, 0, 0))
        line.add_row("", self._spinner, text)
        return line

    def _reading(self) -> list[str]:
        if self._done_of_total is None or not self._done_of_total[1]:
            return []
        done, total = self._done_of_total
        left = self._left_s(done, total)
        words = [f"{done:,} of {total:,} tokens ({100 * done // total} %)"]
        return [*words, f"{seconds(left)} left"] if left else words

    def _left_s(self, done: int, total: int) -> float:
        """Seconds until the prompt is read, at the speed so far; 0 while that is not known."""
        if self._read_from is None:
            return 0
        start, before = self._read_from
        took = self._clock() - start
        return took * (total - done) / (done - before) if done > before and took > _SURE_AFTER_S else 0
