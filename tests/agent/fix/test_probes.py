"""Candidates tried at once, each in a work tree of its own, with real suites in real clones."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from m3_tools.base import ToolResult
from m3agent.confinement import detection
from m3agent.errors import M3Error
from m3agent.events import CandidateTried
from m3agent.fix import search
from m3agent.fix.baseline import Baseline, take_baseline
from m3agent.fix.candidates import Candidate, Proposal
from m3agent.fix.issue import Issue
from m3agent.fix.probes import Opener, Place, Probe, Probes
from m3agent.fix.suite import Suite
from m3agent.fix.suspects import Suspect
from m3agent.fix.worktree import WorkTree, open_worktree
from m3agent.messages import ToolCall

STOCK = "shop/stock.py"
WRONG, RIGHT = b"return False", b"return level <= limit"


@pytest.fixture
def first(shop: Path, tmp_path: Path, temporary_folder: Path) -> Iterator[Place]:
    with open_worktree(shop) as worktree:
        suite = Suite(root=worktree.root, origin=shop, spill_dir=tmp_path, command="python -m unittest")
        yield Place(worktree, suite)


@pytest.fixture
def baseline(first: Place) -> Baseline:
    return asyncio.run(
        take_baseline(first.suite, Issue(title="An item at its limit is not ordered", body="", source=""))
    )


def another(first: Place, damage: str = "") -> Opener:
    """One more clone; in a damaged one the tests fail for a reason of their own."""

    @contextlib.contextmanager
    def opened() -> Iterator[Place]:
        with open_worktree(first.worktree.origin) as worktree:
            if damage:
                (worktree.root / STOCK).write_text(damage)
            yield Place(worktree, dataclasses.replace(first.suite, root=worktree.root))

    return opened


def candidate(worktree: WorkTree, line: bytes) -> Candidate:
    before = (worktree.root / STOCK).read_bytes()
    suspect = Suspect(path=STOCK, symbol="needs_reorder", first_line=1, last_line=2, ran_lines=frozenset(), score=1.0)
    proposal = Proposal(suspect=suspect, call=ToolCall(id="c", name="edit_line", arguments={}), score=0.0)
    after = before.replace(b"return level < limit", line)
    assert after != before
    return Candidate(proposal=proposal, path=STOCK, before=before, after=after, diff="", result=ToolResult(text=""))


def grown(probes: Probes) -> int:
    """How many candidates can be tried at once when one more place was asked for."""
    asyncio.run(probes.grow())
    return probes.at_once


async def all_of(probed: AsyncIterator[Probe]) -> list[Probe]:
    return [probe async for probe in probed]


def test_each_place_has_a_candidate_of_its_own(first: Place, baseline: Baseline, temporary_folder: Path) -> None:
    candidates = [candidate(first.worktree, line) for line in (WRONG, RIGHT, b"return level)")]
    with Probes(first, baseline, another(first), most=3) as probes:
        assert [grown(probes) for _ in range(4)] == [2, 3, 3, 3]
        assert len(list(temporary_folder.glob("m3-fix-*"))) == 3
        for order in (candidates, candidates[::-1]):
            found = asyncio.run(all_of(probes.run(order)))
            assert [probe.candidate for probe in found] == order
            verdicts = {probe.candidate.after: probe.fault and probe.fault.verdict for probe in found}
            assert [verdicts[c.after] for c in candidates] == ["still_failing", None, "broken"]
        for place in temporary_folder.glob(f"m3-fix-*/*/{STOCK}"):
            assert place.read_bytes() == candidates[0].before
    assert list(temporary_folder.glob("m3-fix-*")) == [first.worktree.root.parent]


@pytest.mark.parametrize("damage", ["def needs_reorder(level, limit):\n    return 1 / 0\n\n\norder = None\n", "none"])
def test_a_place_where_the_tests_fail_otherwise_is_not_used(first: Place, baseline: Baseline, damage: str) -> None:
    with Probes(first, baseline, another(first, damage), most=4) as probes:
        assert [grown(probes) for _ in range(2)] == [1, 1]


def test_one_place_is_enough_where_there_can_be_no_other(first: Place, baseline: Baseline) -> None:
    @contextlib.contextmanager
    def full() -> Iterator[Place]:
        raise OSError(28, "No space left on device")
        yield

    for opener in (None, full):
        with Probes(first, baseline, opener, most=4) as probes:
            assert grown(probes) == 1
            (probe,) = asyncio.run(all_of(probes.run([candidate(first.worktree, RIGHT)])))
            assert probe.fault is None


def test_a_failure_of_one_place_is_raised_when_all_are_done(first: Place, baseline: Baseline) -> None:
    wrong = candidate(first.worktree, WRONG)
    outside = dataclasses.replace(wrong, path="../outside/stock.py")
    with Probes(first, baseline, another(first), most=2) as probes:
        assert grown(probes) == 2
        for order in ([wrong, outside], [outside, wrong]):
            with pytest.raises(M3Error, match="out of the work tree"):
                asyncio.run(all_of(probes.run(order)))
            assert (first.worktree.root / STOCK).read_bytes() == wrong.before


def test_a_right_one_does_not_wait_for_one_that_hangs(first: Place, baseline: Baseline, temporary_folder: Path) -> None:
    right, hangs = candidate(first.worktree, RIGHT), candidate(first.worktree, b"while True: pass")
    with Probes(first, baseline, another(first), most=2) as probes:
        assert grown(probes) == 2

        async def take_the_first() -> Probe:
            async with contextlib.aclosing(probes.run([right, hangs])) as probed:
                return await anext(probed)

        start = time.monotonic()
        assert asyncio.run(take_the_first()).fault is None
        assert time.monotonic() - start < baseline.short_limit_s
        for place in temporary_folder.glob(f"m3-fix-*/*/{STOCK}"):
            assert place.read_bytes() == right.before


def test_the_outcome_is_that_of_one_after_the_other(
    shop: Path, fix: Any, proposing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    edits = [
        ("replace", "L2|", f"    return {text}", -1.0 - number / 10)
        for number, text in enumerate(["False", "None", "level <= limit", "level == limit", "not level > limit"])
    ]
    ways = []
    for cores in (1, 3):
        monkeypatch.setattr(search, "num_cores", lambda cores=cores: cores)
        result = asyncio.run(fix(shop, proposing([(STOCK, "needs_reorder", -0.5)], {"needs_reorder": edits})))
        events = [event for event in result.events.events if isinstance(event, CandidateTried)]
        ways.append([(event.index, event.verdict, event.detail, event.diff) for event in events])
        names = [run["name"] for run in result.report["runs"]]
        assert names.count("another work tree") == (cores > 1 and detection().backend is not None)
        assert result.report["candidates"]["tried"] == 3
    assert ways[0] == ways[1]
    assert [verdict for _, verdict, *_ in ways[0]] == ["still_failing", "still_failing", "fixed"]
