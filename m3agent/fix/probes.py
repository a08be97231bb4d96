"""Several candidates under test at once, each in a work tree of its own.

There is one work tree more each time that all candidates were wrong, up to as many as the machine has cores. They serve
to find faults, which most candidates have: one in which none is found is judged in the first work tree, where the
repair is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from types import TracebackType

from m3agent.errors import M3Error
from m3agent.fix.baseline import Baseline
from m3agent.fix.candidates import Candidate
from m3agent.fix.suite import Suite
from m3agent.fix.trial import Trial, find_fault
from m3agent.fix.worktree import Entry, WorkTree

MOST = 16
"""So many at once at most: a core is not all that a test needs."""


@dataclasses.dataclass(frozen=True)
class Place:
    """A work tree, and the tests in it."""

    worktree: WorkTree
    suite: Suite


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """What the targets said of a candidate: a fault, or None; and how long that took."""

    candidate: Candidate
    fault: Trial | None
    duration_s: float


Opener = Callable[[], contextlib.AbstractContextManager[Place]]


def num_cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Probes(contextlib.AbstractContextManager["Probes"]):
    """The places in which candidates are tried. `open_another` makes one more, None says that there can be none."""

    def __init__(
        self, first: Place, baseline: Baseline, open_another: Opener | None, *, most: int, load_plugins: bool = True
    ):
        self._places, self._baseline, self._open_another = [first], baseline, open_another
        self._most, self._load_plugins = min(most, MOST), load_plugins
        self._opened = contextlib.ExitStack()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._opened.close()

    @property
    def at_once(self) -> int:
        """How many candidates `run` takes."""
        return len(self._places)

    async def grow(self) -> None:
        """Make one more work tree, if there may be one. Where the targets do not fail as in the first, none follows."""
        opener = self._open_another
        if opener is None or self.at_once == self._most:
            return
        self._open_another = None
        with contextlib.suppress(M3Error, OSError):  # a full disk, for instance: those that there are do the work
            place = self._opened.enter_context(opener())
            if await self._is_like_the_first(place.suite):
                self._places.append(place)
                self._open_another = opener

    async def run(self, candidates: Sequence[Candidate]) -> AsyncGenerator[Probe, None]:
        """Try these, at most `at_once`, all at the same time; their probes in their order, each as soon as it is known.

        The first work tree is free with the first probe. Closing the generator stops those that still run.
        """
        tasks = [
            asyncio.create_task(self._probe(candidate, place))
            for candidate, place in zip(candidates, self._places, strict=False)
        ]
        try:
            for task in tasks:
                yield await task
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _probe(self, candidate: Candidate, place: Place) -> Probe:
        start = time.monotonic()
        with _changed(place.worktree, candidate):
            fault = await find_fault(place.suite, self._baseline, load_plugins=self._load_plugins)
        return Probe(candidate=candidate, fault=fault, duration_s=time.monotonic() - start)

    async def _is_like_the_first(self, suite: Suite) -> bool:
        targets, limit_s = self._baseline.targets, self._baseline.short_limit_s
        report = await suite.run(
            "another work tree", targets, limit_s=limit_s, load_plugins=self._load_plugins, stop_at_failure=True
        )
        known = {failure.test_id: failure.error_type for failure in self._baseline.report.failures}
        return bool(report.failures) and all(known.get(f.test_id) == f.error_type for f in report.failures)


@contextlib.contextmanager
def _changed(worktree: WorkTree, candidate: Candidate) -> Iterator[None]:
    worktree.put(candidate.path, Entry(candidate.after))  # tests could have left a link there
    try:
        yield
    finally:
        worktree.put(candidate.path, Entry(candidate.before))
