"""One change under test: the targets first, within a short limit, then the whole suite, then the targets again."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from m3_tools.report import TestReport, compare
from m3agent.fix.baseline import Baseline
from m3agent.fix.suite import Suite
from m3agent.fix.verify import holds_every_time, judged_broken

Verdict = Literal["fixed", "still_failing", "regressed", "broken"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """What the tests said. `after` is the run of the whole suite, given exactly if the verdict is `fixed`."""

    verdict: Verdict
    detail: str
    after: TestReport | None = None


async def find_fault(suite: Suite, baseline: Baseline, *, load_plugins: bool = True) -> Trial | None:
    """Why the change that lies in the work tree is none, as soon as one target shows it; None if all of them pass.

    `load_plugins` False runs the targets without the runner's plugins (see Suite.needs_plugins), never the whole suite.
    """
    limit_s = baseline.short_limit_s
    quick = await suite.run(
        "candidate", baseline.targets, limit_s=limit_s, load_plugins=load_plugins, stop_at_failure=True
    )
    if quick.timed_out:
        return Trial(verdict="broken", detail=f"stopped after {limit_s:.0f} s")
    if not quick.could_start or quick.collection_errors:
        return Trial(verdict="broken", detail=quick.reason or "the tests cannot be collected")
    failing = [i for i in baseline.targets if quick.outcomes.get(i) not in ("passed", "xfailed", "xpassed")]
    return Trial(verdict="still_failing", detail=_failed_one(failing, quick)) if failing else None


async def judge(suite: Suite, baseline: Baseline, *, load_plugins: bool = True) -> Trial:
    """The change in the work tree, in which no fault was found, in the whole suite. `verify` then makes the proof."""
    whole = await suite.run("candidate", limit_s=baseline.limit_s)
    if whole.timed_out or not whole.could_start:
        return Trial(verdict="broken", detail=f"the whole suite did not end within {baseline.limit_s:.0f} s")
    if broken := judged_broken(baseline, compare(baseline.report, whole)):
        return Trial(verdict="regressed", detail=f"{len(broken)} tests fail that passed: {broken[0]}")
    if not await holds_every_time(suite, baseline.targets, limit_s=baseline.limit_s, load_plugins=load_plugins):
        return Trial(verdict="still_failing", detail="the tests pass by chance, not in every run")
    return Trial(verdict="fixed", detail=f"{len(baseline.targets)} failing tests pass", after=whole)


def _failed_one(failing: Sequence[str], report: TestReport) -> str:
    """The name of the test that ended the run: the others that are not known to pass did not run."""
    return next((test_id for test_id in failing if test_id in report.outcomes), failing[0]).rpartition("::")[2]
