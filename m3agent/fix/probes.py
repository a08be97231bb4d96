"""Several candidates under test at once, each in a work tree of its own.

A second work tree is made when the first candidate was wrong; there are as many as the machine has cores. They serve to
find faults, which most candidates have: one in which none is found is judged in the first work tree, where the
repair is made.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Sequence
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

    def __init__(self, first: Place, baseline: Baseline, open_another: Opener | None, *, most: int):
        self._places, self._baseline, self._open_another = [first], baseline, open_another
        self._most = min(most, MOST)
        self._opened = contextlib.ExitStack()
        self.load_plugins = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._opened.close()

    @property
    def at_once(self) -> int:
        """How many candidates `run` takes."""
        return len(self._places)

    async def spread(self) -> None:
        """Make the other work trees. One in which the targets do not fail as they do in the first is not used."""
        opener, self._open_another = self._open_another, None
        if opener is None:
            return
        with contextlib.suppress(M3Error, OSError):  # one place is enough
            while len(self._places) < self._most:
                place = self._opened.enter_context(opener())
                if not await self._is_like_the_first(place.suite):
                    return
                self._places.append(place)

    async def run(self, candidates: Sequence[Candidate]) -> list[Probe]:
        """Try these, at most `at_once`, all at the same time. The work trees are then as they were."""
        pairs = zip(candidates, self._places, strict=False)
        done = await asyncio.gather(*(self._probe(*pair) for pair in pairs), return_exceptions=True)
        return [_result(each) for each in done]

    async def _probe(self, candidate: Candidate, place: Place) -> Probe:
        start = time.monotonic()
        with _changed(place.worktree, candidate):
            fault = await find_fault(place.suite, self._baseline, load_plugins=self.load_plugins)
        return Probe(candidate=candidate, fault=fault, duration_s=time.monotonic() - start)

    async def _is_like_the_first(self, suite: Suite) -> bool:
        targets, limit_s = self._baseline.targets, self._baseline.short_limit_s
        report = await suite.run(
            "another work tree", targets, limit_s=limit_s, load_plugins=self.load_plugins, stop_at_failure=True
        )
        known = {failure.test_id: failure.error_type for failure in self._baseline.report.failures}
        return bool(report.failures) and all(known.get(f.test_id) == f.error_type for f in report.failures)


def _result(done: Probe | BaseException) -> Probe:
    if isinstance(done, BaseException):
        raise done
    return done


@contextlib.contextmanager
def _changed(worktree: WorkTree, candidate: Candidate) -> Iterator[None]:
    worktree.put(candidate.path, Entry(candidate.after))  # tests could have left a link there
    try:
        yield
    finally:
        worktree.put(candidate.path, Entry(candidate.before))
