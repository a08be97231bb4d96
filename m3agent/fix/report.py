"""The result of a fix: a dictionary of JSON values for programs, and its text for people."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from m3_tools.report import GOOD
from m3agent.budget import Budget
from m3agent.fix.baseline import Baseline
from m3agent.fix.issue import Issue
from m3agent.fix.review import Review
from m3agent.fix.suite import Suite, counts_json
from m3agent.fix.verify import Evidence

SCHEMA = 1
"""Rises when a field changes its meaning or goes; new fields do not raise it."""

MAX_NEW = 20
"""New findings of a linter that are listed."""


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
    review: Review | None = None,
    pictures: int = 0,
    diff: str = "",
    files: tuple[str, ...] = (),
    candidates_tried: int = 0,
    candidates_limit: int = 0,
    delivery: dict[str, Any] | None = None,
    page: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Everything that is known at the end of a run. Fields that were never reached are null or empty."""
    comparison, review = evidence.comparison if evidence else None, review or Review()
    checks = evidence.checks if evidence else ()
    return {
        "schema": SCHEMA,
        "issue": {"title": issue.title, "source": issue.source, "notes": list(issue.notes)},
        "repo": str(repo),
        "model": model,
        "strategy": strategy,
        "flags": [*_objection(review), *(evidence.flags if evidence else ())],
        "proven": evidence.proven if evidence else False,
        "reason": evidence.reason if evidence else "",
        "tests": {
            "command": suite.shown_command if suite else "",
            "before": counts_json(baseline.report) if baseline else None,
            "after": counts_json(evidence.after) if evidence else None,
            "undone": counts_json(evidence.undone) if evidence and evidence.undone else None,
            "delivered": counts_json(evidence.delivered) if evidence and evidence.delivered else None,
            "exit_codes": {
                "before": baseline.report.exit_code if baseline else None,
                "after": evidence.after.exit_code if evidence else None,
                "undone": evidence.undone.exit_code if evidence and evidence.undone else None,
                "delivered": evidence.delivered.exit_code if evidence and evidence.delivered else None,
            },
            "targets": list(baseline.targets) if baseline else [],
            "failed_before_too": list(baseline.others) if baseline else [],
            "flaky": list(baseline.flaky) if baseline else [],
            "shown": list(evidence.shown) if evidence else [],
            "fixed": list(comparison.fixed) if comparison else [],
            "broken": list(comparison.broken) if comparison else [],
            "missing": list(comparison.missing) if comparison else [],
            "still_failing": list(comparison.still_failing) if comparison else [],
        },
        "checks": [{**dataclasses.asdict(c), "new": list(c.new[:MAX_NEW])} for c in checks],
        "review": {"verdict": review.verdict, "text": review.text},
        "not_verified": _not_verified(baseline, evidence, review, pictures, changed=bool(diff)),
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


def _objection(review: Review) -> list[str]:
    return [f"a fresh fork that saw issue and diff objects: {review.text}"] if review.verdict == "objects" else []


def _not_verified(
    baseline: Baseline | None, evidence: Evidence | None, review: Review, pictures: int, *, changed: bool
) -> list[str]:
    """What the evidence does not cover, one sentence each; nothing where nothing was changed."""
    if not changed:
        return []
    if evidence is None:
        return ["no test has judged the change"]
    lines = [] if evidence.proven else [f"the change is not proven: {evidence.reason}"]
    left = [i for i in (baseline.others if baseline else ()) if evidence.after.outcomes.get(i) not in GOOD]
    if left:
        lines.append(f"tests that failed before, still fail and were not looked at, {len(left)}: {_some(left)}")
    if baseline and baseline.flaky:
        lines.append(f"flaky tests, which prove nothing: {_some(baseline.flaky)}")
    if skipped := evidence.after.counts.skipped:
        lines.append(f"{skipped} tests were skipped, before the change or by themselves, and show nothing")
    lines += [check.missing for check in evidence.checks if check.missing]
    if evidence.proven and not evidence.checks:
        lines.append("no linter or type checker that m3 knows is set up for the changed files")
    if evidence.proven and review.missing:
        lines.append(review.missing)
    if pictures:
        lines.append(f"how it looks: {pictures} picture(s) were given, and the tests see none")
    return lines


def evidence_text(report: dict[str, Any]) -> str:
    """The evidence in a few lines: warnings, test counts, what was not verified, where it lies, the cost, the diff."""
    tests = report["tests"]
    lines = [f"Warning: {flag}" for flag in report["flags"]]
    if tests["before"]:
        lines.append(f"before   {_counts(tests, 'before')}   {tests['command']}")
    if tests["after"]:
        lines.append(f"after    {_counts(tests, 'after')}")
    if tests["undone"]:
        lines.append(f"undone   {_counts(tests, 'undone')}   (the target tests, without the change)")
    if tests["delivered"]:
        lines.append(f"with its tests   {_counts(tests, 'delivered')}; {_own_tests(tests['shown'])}")
    for check in report["checks"]:
        if not check["missing"]:
            lines.append(f"{check['name']:<8} {check['before']} findings before, {check['after']} after")
    if report["review"]["verdict"] == "accepts":
        lines.append("review   a fresh fork that saw issue and diff accepts")
    lines += [f"not verified: {line}" for line in report["not_verified"]]
    if (page := report["page"]) and page["text"]:
        lines.append(f"page     {page['text']}")
        lines += [f"page {name}: {path}" for name, path in page["pictures"].items()]
    for what, place in report["delivery"].items():
        lines.append(f"{what}: {place}")
    if report["steps"] or report["runs"]:
        lines.append(_cost(report))
    if report["diff"]:
        lines += ["", report["diff"].rstrip("\n")]
    return "\n".join(lines)


def _cost(report: dict[str, Any]) -> str:
    tokens = report["tokens"]
    cached = f" ({tokens['cached']:,} cached)" if tokens["cached"] else ""
    tried = f", {report['candidates']['tried']} edits tried" if report["candidates"]["tried"] else ""
    return (
        f"{report['duration_s']:.1f} s; {report['model']}: {report['steps']} turns, {tokens['prompt']:,} tokens "
        f"read{cached}, {tokens['completion']:,} written; {len(report['runs'])} runs of tests{tried}"
    )


def _own_tests(shown: Sequence[str]) -> str:
    if not shown:
        return "none of them fails without the change"
    return f"without the change fail {len(shown)} of them: {', '.join(shown[:3])}"


def _counts(tests: dict[str, Any], key: str) -> str:
    counts, code = tests[key], tests["exit_codes"][key]
    shown = ", ".join(f"{number} {name}" for name, number in counts.items() if number) or "no tests"
    return shown if code is None else f"{shown}, exit code {code}"


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
