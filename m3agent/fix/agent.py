"""The *agent* strategy: the model works freely in the work tree; the proof stays with the program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from m3_tools.base import ToolContext
from m3_tools.jobs import Jobs
from m3_tools.report import report_text
from m3_tools.screenshot.picture import Picture
from m3_tools.screenshot.tool import ScreenshotTool
from m3_tools.text import shown
from m3_tools.toolset import all_tools
from m3agent.approval import Mode
from m3agent.budget import Budget
from m3agent.events import Notice, PhaseEnded, PhaseStarted
from m3agent.fix.baseline import Baseline
from m3agent.fix.issue import Issue
from m3agent.fix.outcome import Ended, Outcome
from m3agent.fix.page import PageWatch
from m3agent.fix.prompt import issue_text, named_pictures
from m3agent.fix.suite import Suite
from m3agent.fix.verify import Evidence, verify
from m3agent.fix.worktree import WorkTree
from m3agent.images import parts_for
from m3agent.llm.protocol import LanguageModel, Options
from m3agent.loop import LoopResult, run_loop
from m3agent.messages import user
from m3agent.permissions.rules import Rule
from m3agent.prompt import Conversation, system_prompt
from m3agent.sinks import EventSink
from m3agent.surroundings import surroundings

MAX_LISTED = 20
"""Test ids that the prompt names; more are counted."""
MAX_ANSWER_CHARS = 4000
"""Of what a model says that changed nothing: it is all that the person gets."""
NO_TESTS = (
    "No tests were found: nothing proves a change, and it will be kept as a patch. If you can write a test that the "
    "`test` tool then finds, it can prove the repair, provided that it fails without it on the reported symptom."
)
NOTHING_FAILS = (
    "No failing test shows the problem. Write one, in the repository's own test files, that fails on the reported "
    "symptom and not on an import; see it fail, then repair the cause. Only a test that fails without your repair and "
    "passes with it can prove it. If the problem does not exist here, change nothing and say what you tried."
)
UNLESS_UNRELATED = (
    ", unless they fail for a reason that the issue does not mean; then leave them, say so, and write a test that "
    "fails on the reported symptom, as proof of your repair"
)
MAX_ROUNDS = 3
"""So often the model may hand in a change; the second and third time it knows why the last one was refused."""


async def run_agent(
    model: LanguageModel,
    issue: Issue,
    worktree: WorkTree,
    suite: Suite,
    baseline: Baseline,
    budget: Budget,
    sink: EventSink,
    options: Options,
    mode: Mode,
    rules: Sequence[Rule] = (),
    *,
    pictures: Sequence[Picture] = (),
    watch: PageWatch | None = None,
) -> tuple[Evidence | None, Ended | None]:
    """Let the model repair the issue; the change lies in the work tree. Without any test there is no evidence.

    `pictures` belong to the issue; the page that is watched comes after them, as it looked before.

    With a change that is not proven comes how the work ended, if it was not the model that ended it.
    Errors: Ended when nothing was changed; ModelError of the model.
    """
    eyes = (watch.eyes() if watch else ScreenshotTool(),) if model.info.reads_images else ()
    tools = all_tools(run_tests=suite.tool(baseline.limit_s), more=eyes)
    jobs = Jobs()
    context = ToolContext(
        root=worktree.root,
        spill_dir=suite.spill_dir,
        environment=dict(suite.environment),
        sandbox=suite.sandbox,
        unconfined=suite.unconfined,
        jobs=jobs,
        disposable=True,
        secrets=suite.secrets,
    )
    conversation = Conversation(sink)
    where = surroundings(worktree.root, environment=suite.environment, test_command=suite.shown_command)
    conversation.add(system_prompt(model.info, command="fix", surroundings=where))
    parts = [issue_text(issue, model.info), named_pictures(pictures, watch, model.info), _tests_before(baseline)]
    images = parts_for((*pictures, *((watch.before,) if watch else ())), model.info)
    conversation.add(user("\n\n".join(filter(None, parts)), *images))
    for number in range(1, MAX_ROUNDS + 1):
        sink(PhaseStarted(name="work", detail=f"round {number}" if number > 1 else ""))
        start = budget.elapsed_s
        try:
            result = await run_loop(
                model, conversation, tools, context, sink=sink, options=options, budget=budget, mode=mode, rules=rules
            )
        finally:
            await jobs.close()  # nothing may change files while they are judged
        sink(PhaseEnded(name="work", summary=result.detail or result.outcome, duration_s=budget.elapsed_s - start))
        changed = bool(worktree.changed())
        if result.outcome != "answered" and not changed:
            raise _ended(result)
        if not changed:
            outcome: Outcome = "not_fixed" if baseline.is_empty or baseline.targets else "not_reproduced"
            raise Ended(outcome, f"the model changed nothing. It says:\n{_bounded(result.text)}")
        evidence = await verify(worktree, suite, baseline)
        if baseline.is_empty and evidence.delivered is None:
            return None, None
        if evidence.proven or result.outcome != "answered" or number == MAX_ROUNDS:
            early = None if evidence.proven or result.outcome == "answered" else _ended(result)
            return evidence, early
        sink(Notice(text=f"not proven: {evidence.reason}", level="warning"))
        failing = report_text(dataclasses.replace(evidence.delivered or evidence.after, executed={}, scores={}))
        conversation.add(
            user(f"Your change was tested and does not count yet: {evidence.reason}.\n\n{failing}\n\nGo on from here.")
        )
    raise AssertionError("unreachable")


def _tests_before(baseline: Baseline) -> str:
    """What the tests showed, and which of the failures the repair must end."""
    if baseline.is_empty:
        return NO_TESTS
    parts = ["The tests before any change:", report_text(baseline.report)]
    if baseline.targets:
        unless = "" if baseline.pointed else UNLESS_UNRELATED
        parts.append(f"These must pass afterwards{unless}:\n{_listed(baseline.targets)}")
    else:
        parts.append(NOTHING_FAILS)
    if baseline.others:
        parts.append("The issue does not point to these failures; they need not pass:\n" + _listed(baseline.others))
    if baseline.flaky:
        parts.append("These pass or fail by chance and prove nothing:\n" + _listed(baseline.flaky))
    return "\n\n".join(parts)


def _listed(test_ids: Sequence[str]) -> str:
    lines = [f"- {shown(test_id)}" for test_id in test_ids[:MAX_LISTED]]
    if len(test_ids) > MAX_LISTED:
        lines.append(f"- and {len(test_ids) - MAX_LISTED} more")
    return "\n".join(lines)


def _ended(result: LoopResult) -> Ended:
    if result.outcome in ("budget", "truncated", "context_full"):
        return Ended("budget", result.detail)
    if result.outcome == "needs_approval":
        return Ended("needs_approval", result.detail)
    return Ended("not_fixed", result.detail or _one_line(result.text))


def _bounded(text: str) -> str:
    return text if len(text) <= MAX_ANSWER_CHARS else f"{text[:MAX_ANSWER_CHARS]}…"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 200 else f"{line[:199]}…"
