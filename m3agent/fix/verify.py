"""The proof: the failing tests pass every time, nothing else breaks, and without the change they fail again.

All test code that the change touched or added is put back for the proof, so that weakening a test can never make a
repair. What is handed over is the whole change, though, so the suite then runs once more with it as it is. Where no
test showed the problem, the change has to bring one: its own tests that fail without the rest of it are then the proof.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Sequence
from pathlib import PurePosixPath

from m3_tools.report import GOOD, TestComparison, TestReport, compare, is_test_file
from m3agent.fix.baseline import Baseline
from m3agent.fix.checks import Check, run_checks
from m3agent.fix.own_tests import NOTHING_SHOWN, run_own_tests, tests_in
from m3agent.fix.suite import Suite
from m3agent.fix.worktree import WorkTree

TEST_CONFIGURATION = frozenset(
    {"conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "package.json", "noxfile.py", ".coveragerc"}
)
_SKIPS = re.compile(r"skip|xfail|\.only\(|@ignore|t\.Skip", re.IGNORECASE)
_ASSERTS = re.compile(r"\bassert\w*|\bexpect\(|pytest\.raises|self\.assert\w+")
IF_UNRELATED = "If they fail for another reason than the issue's, leave them, and add a test that shows the problem"
REPEATS, LEAST_REPEATS, REPEAT_S = 8, 3, 10.0
"""Runs of the targets that must all pass; with slow tests fewer, once they have taken so many seconds together."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evidence:
    """What was shown. `flags` come first wherever it is printed. `reason` is empty exactly if the repair is proven.

    `after` ran with the test code as it was, `delivered` with that of the change; None if it touches no test code or
    was refused before. `repaired` are the targets that had to pass, `shown` the tests in the touched test code that
    fail without the rest of the change. `checks` are linters and type checkers; they run last.
    """

    reason: str
    flags: tuple[str, ...]
    changed: tuple[str, ...]
    diff: str
    comparison: TestComparison
    after: TestReport
    undone: TestReport | None
    delivered: TestReport | None
    repaired: tuple[str, ...]
    shown: tuple[str, ...]
    checks: tuple[Check, ...] = ()

    @property
    def proven(self) -> bool:
        return not self.reason


async def verify(worktree: WorkTree, suite: Suite, baseline: Baseline, after: TestReport | None = None) -> Evidence:
    """Prove or refuse the change that lies in the work tree; the change still lies there afterwards.

    `after` is a run of the whole suite with exactly this change, if there is one and the change held every time.
    """
    changed, diff = worktree.changed(), worktree.diff()
    known = after is not None
    flags, test_code = touched_tests(worktree, changed, diff, proof_rests_on_them=not baseline.targets)
    with worktree.without(test_code):
        if after is None or test_code:
            after = await suite.run("after", limit_s=baseline.limit_s)
    comparison = compare(baseline.report, after)
    undone: TestReport | None = None
    delivered: TestReport | None = None
    shown: tuple[str, ...] = ()
    targets, left = _split_targets(baseline, after, may_leave=bool(test_code))
    rests_on_own = bool(left) or not targets
    reason = _why_not(baseline, changed, after, comparison, failing=[i for i in targets if not _passes(after, i)])
    if not reason and targets:
        with worktree.without(changed):
            undone = await suite.run("undone", targets, limit_s=baseline.limit_s)
        good = [i for i in targets if _passes(undone, i)]
        if good:
            reason = f"{good[0]} also passes without the change, so the change does not explain it"
    if not reason and targets and (test_code or not known):
        with worktree.without(test_code):
            if not await holds_every_time(suite, targets, limit_s=baseline.limit_s):
                reason = "the tests that passed with the change do not pass every time"
    if not reason and test_code:
        delivered = await suite.run("delivered", limit_s=baseline.limit_s)
        reason = _why_not_delivered(baseline, delivered, left)
        own = [i for i in tests_in(test_code, delivered) if _passes(delivered, i) and i not in baseline.flaky]
        if (
            not reason
            and own
            and not await holds_every_time(suite, own, limit_s=baseline.limit_s, repeats=LEAST_REPEATS)
        ):
            reason = "the tests that the change adds or edits do not pass every time"
    why_none = NOTHING_SHOWN
    if not reason and delivered is not None:
        shown, why_none = await run_own_tests(worktree, suite, changed, test_code, delivered, limit_s=baseline.limit_s)
    if not reason and rests_on_own:
        reason = why_none
        if shown and not await holds_every_time(suite, shown, limit_s=baseline.limit_s):
            reason = "the tests of the change do not pass every time"
        flags = (*_flags_of_own_proof(shown, left), *flags)
    worktree.settle(changed)  # what these runs left is no part of the change
    checks = () if reason else await run_checks(worktree, suite, changed)
    return Evidence(
        reason=reason or worse(checks),
        flags=flags,
        changed=changed,
        diff=diff,
        comparison=comparison,
        after=after,
        undone=undone,
        delivered=delivered,
        repaired=targets,
        shown=shown,
        checks=checks,
    )


def worse(checks: Sequence[Check]) -> str:
    """Why a change must not be handed over although the tests are content: a tool finds more than before."""
    for check in checks:
        if check.new:
            return f"{check.name} finds {len(check.new)} more than before: {check.new[0]}"
    return ""


async def holds_every_time(
    suite: Suite, ids: Sequence[str], *, limit_s: float, load_plugins: bool = True, repeats: int = REPEATS
) -> bool:
    """Whether these tests pass in run after run with the change that lies in the work tree.

    Each run has a hash seed of its own: an order of a set that fits by chance is no repair.
    """
    start = time.monotonic()
    for number in range(1, repeats + 1):
        if number > LEAST_REPEATS and time.monotonic() - start > REPEAT_S:
            break
        again = await suite.run("again", ids, limit_s=limit_s, load_plugins=load_plugins, hash_seed=number)
        if any(again.outcomes.get(i) not in GOOD for i in ids):
            return False
    return True


def _split_targets(
    baseline: Baseline, after: TestReport, *, may_leave: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The targets that must pass, and those that may go on failing.

    A failing test that the issue's words do not point to may fail for a reason of its own. It may be left so if the
    change brings a test that shows the problem.
    """
    left = tuple(i for i in baseline.targets if not _passes(after, i)) if may_leave and not baseline.pointed else ()
    return tuple(i for i in baseline.targets if i not in left), left


def _passes(report: TestReport, test_id: str) -> bool:
    return report.outcomes.get(test_id) in GOOD


def _flags_of_own_proof(shown: Sequence[str], left: Sequence[str]) -> list[str]:
    """What a person should know where the proof rests on tests that the change itself brings."""
    flags = [f"the proof rests on tests that the change brings: {_named(shown)}"] if shown else []
    return [*flags, f"failed before, still fail, taken as no part of the issue: {_named(left)}"] if left else flags


def judged_broken(baseline: Baseline, comparison: TestComparison) -> list[str]:
    """Tests that the change broke or made disappear. What is flaky proves nothing in either direction."""
    return [i for i in (*comparison.broken, *comparison.missing) if i not in baseline.flaky]


def _why_not(
    baseline: Baseline, changed: Sequence[str], after: TestReport, comparison: TestComparison, *, failing: Sequence[str]
) -> str:
    if not changed:
        return "nothing was changed"
    if reason := _did_not_run(baseline, after):
        return reason
    if broken := judged_broken(baseline, comparison):
        return f"{len(broken)} tests that passed do not pass after the change: {', '.join(broken[:3])}"
    if failing:
        why = f"{len(failing)} of {len(baseline.targets)} failing tests still fail: {_named(failing)}"
        return why if baseline.pointed else f"{why}. {IF_UNRELATED}"
    return ""


def _why_not_delivered(baseline: Baseline, delivered: TestReport, left: Sequence[str]) -> str:
    """Why the change must not be handed over although it repairs the code: what it does to the tests fails."""
    if reason := _did_not_run(baseline, delivered):
        return f"the repair holds, but not with the test code of the change: {reason}"
    known = {*baseline.others, *baseline.flaky, *left}
    failing = [i for i in delivered.failed_ids if i not in known]
    if failing:
        return (
            f"the repair holds, but {len(failing)} tests that the change adds or edits fail: {', '.join(failing[:3])}"
        )
    return ""


def _did_not_run(baseline: Baseline, report: TestReport) -> str:
    if not report.could_start:
        return f"after the change the tests cannot start: {report.reason}"
    if report.timed_out:
        return f"after the change the tests do not end within {baseline.limit_s:.0f} s"
    return ""


def touched_tests(
    worktree: WorkTree, changed: Sequence[str], diff: str, *, proof_rests_on_them: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sentences on touched tests, and the test code (and settings of tests) to put back for the proof.

    Where the proof rests on the tests of the change, the old ones still run as they were, to show that nothing broke.
    """
    ending = "" if proof_rests_on_them else "; the proof was made with the file as it was"
    flags: list[str] = []
    test_code: list[str] = []
    for path in changed:
        steers = PurePosixPath(path).name in TEST_CONFIGURATION
        if not is_test_file(path) and not steers:
            continue
        test_code.append(path)
        if worktree.base_bytes(path) is None:
            if steers:  # a new test is welcome, new settings may switch old tests off
                flags.append(f"the change adds {path}, which steers the tests; the proof was made without it")
            continue
        removed, added = _changed_lines(diff, path)
        marks = [
            word
            for word, found in (
                ("deletes it", not (worktree.root / path).exists()),
                ("skips tests", len(_SKIPS.findall(added)) > len(_SKIPS.findall(removed))),
                ("removes assertions", len(_ASSERTS.findall(removed)) > len(_ASSERTS.findall(added))),
            )
            if found
        ]
        detail = f" and {', '.join(marks)}" if marks else ""
        flags.append(f"the change touches {path}{detail}{ending}")
    return tuple(flags), tuple(test_code)


def _named(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")


def _changed_lines(diff: str, path: str) -> tuple[str, str]:
    """The removed and the added lines of one file in a diff of git."""
    part = next((p for p in re.split(r"(?m)^diff --git ", diff) if f" b/{path}\n" in p or f"+++ b/{path}" in p), "")
    lines = part.splitlines()
    removed = "\n".join(line[1:] for line in lines if line.startswith("-") and not line.startswith("---"))
    added = "\n".join(line[1:] for line in lines if line.startswith("+") and not line.startswith("+++"))
    return removed, added
