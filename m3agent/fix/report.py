"""The result of a fix: a dictionary of JSON values for programs, and its text for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from m3agent.budget import Budget
from m3agent.fix.baseline import Baseline
from m3agent.fix.issue import Issue
from m3agent.fix.suite import Suite, counts_json
from m3agent.fix.verify import Evidence

SCHEMA = 1
"""Rises when a field changes its meaning or goes; new fields do not raise it."""


def build_report(
    *,
    issue: Issue,
    repo: Path,
    model: str,
    strategy: str,
    budget: Budget,
    suite: Suite | None = None,
    baseline: Baseline | None = None,
    evidence: Evidence | None = None,
    diff: str = "",
    files: tuple[str, ...] = (),
    candidates_tried: int = 0,
    candidates_limit: int = 0,
    delivery: dict[str, Any] | None = None,
    page: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that is known at the end of a run. Fields that were never reached are null or empty."""
    comparison = evidence.comparison if evidence else None
    return {
        "schema": SCHEMA,
        "issue": {"title": issue.title, "source": issue.source, "notes": list(issue.notes)},
        "repo": str(repo),
        "model": model,
        "strategy": strategy,
        "flags": list(evidence.flags) if evidence else [],
        "proven": evidence.proven if evidence else False,
        "reason": evidence.reason if evidence else "",
        "tests": {
            "command": suite.shown_command if suite else "",
            "before": counts_json(baseline.report) if baseline else None,
            "after": counts_json(evidence.after) if evidence else None,
            "undone": counts_json(evidence.undone) if evidence and evidence.undone else None,
            "delivered": counts_json(evidence.delivered) if evidence and evidence.delivered else None,
            "targets": list(baseline.targets) if baseline else [],
            "failed_before_too": list(baseline.others) if baseline else [],
            "flaky": list(baseline.flaky) if baseline else [],
            "shown": list(evidence.shown) if evidence else [],
            "fixed": list(comparison.fixed) if comparison else [],
            "broken": list(comparison.broken) if comparison else [],
            "missing": list(comparison.missing) if comparison else [],
            "still_failing": list(comparison.still_failing) if comparison else [],
        },
        "runs": list(suite.runs) if suite else [],
        "files": list(files),
        "diff": diff,
        "delivery": delivery or {},
        "page": page,
        "candidates": {"tried": candidates_tried, "limit": candidates_limit},
        "tokens": {
            "prompt": budget.usage.prompt_tokens,
            "cached": budget.usage.cached_tokens,
            "completion": budget.usage.completion_tokens,
        },
        "steps": budget.steps,
        "duration_s": round(budget.elapsed_s, 3),
    }


def evidence_text(report: dict[str, Any]) -> str:
    """The evidence in a few lines: warnings first, then the test counts, then what is not proven, then the diff."""
    tests = report["tests"]
    lines = [f"Warning: {flag}" for flag in report["flags"]]
    if tests["before"]:
        lines.append(f"before   {_counts(tests['before'])}")
    if tests["after"]:
        lines.append(f"after    {_counts(tests['after'])}")
    if tests["undone"]:
        lines.append(f"undone   {_counts(tests['undone'])}   (the target tests, without the change)")
    if tests["delivered"]:
        lines.append(f"with its tests   {_counts(tests['delivered'])}; {_own_tests(tests['shown'])}")
    if tests["failed_before_too"] and report["proven"]:
        others = ", ".join(tests["failed_before_too"][:3])
        lines.append(f"failed before and not looked at, {len(tests['failed_before_too'])}: {others}")
    if tests["flaky"]:
        lines.append(f"flaky, so without weight: {', '.join(tests['flaky'][:3])}")
    if (page := report["page"]) and page["text"]:
        lines.append(f"page     {page['text']}")
        lines += [f"page {name}: {path}" for name, path in page["pictures"].items()]
    for what, place in report["delivery"].items():
        lines.append(f"{what}: {place}")
    if report["diff"]:
        lines += ["", report["diff"].rstrip("\n")]
    return "\n".join(lines)


def _own_tests(shown: Sequence[str]) -> str:
    if not shown:
        return "none of them fails without the change"
    return f"without the change fail {len(shown)} of them: {', '.join(shown[:3])}"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in counts.items() if number) or "no tests"
