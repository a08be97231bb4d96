"""The phases of a fix in their order, from the issue to the exit code. The work itself stands in the other files."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from m3_tools.base import ToolContext
from m3_tools.screenshot.page import Page
from m3_tools.screenshot.picture import Picture
from m3agent import __version__
from m3agent.budget import Budget
from m3agent.confinement import Confinement, open_confinement
from m3agent.errors import M3Error
from m3agent.events import Event, FixAsked, Notice, PhaseEnded, PhaseStarted, RunEnded, RunStarted
from m3agent.exits import Exit
from m3agent.fix.agent import run_agent
from m3agent.fix.baseline import Baseline, take_baseline
from m3agent.fix.handover import Handover
from m3agent.fix.issue import issue_json
from m3agent.fix.outcome import Ended
from m3agent.fix.page import PageWatch
from m3agent.fix.probes import Place
from m3agent.fix.report import build_report, evidence_text
from m3agent.fix.request import CHOSEN, SETTLED, FixRequest
from m3agent.fix.review import Review, review
from m3agent.fix.search import Search
from m3agent.fix.seen import read_picture, reads_first, with_read
from m3agent.fix.suite import FIRST_LIMIT_S, Suite
from m3agent.fix.verify import Evidence, verify
from m3agent.fix.worktree import WorkTree, open_worktree
from m3agent.git import GitFailed
from m3agent.images import parts_for, told
from m3agent.llm.factory import open_model
from m3agent.llm.protocol import LanguageModel, ModelError, Options
from m3agent.settings import Settings
from m3agent.signals import interrupt_exit, model_exit
from m3agent.sinks import EventSink

ModelOpener = Callable[[Settings], Awaitable[LanguageModel]]


class Fix:
    """One fix. `run` goes through the phases; what each phase found stays here for the report."""

    def __init__(
        self,
        request: FixRequest,
        settings: Settings,
        sink: EventSink,
        *,
        run_id: str,
        spill_dir: Path,
        opener: ModelOpener = open_model,
        keep: bool = True,
    ):
        """`keep` False leaves nothing in the person's folder, not even a patch: a run that only compares."""
        self.request, self.settings, self._sink = request, settings, sink
        self.run_id, self.spill_dir, self.opener, self.keep = run_id, spill_dir, opener, keep
        self.budget = Budget(max_steps=settings.max_steps, time_limit_s=settings.time_limit_s)
        self.repo = request.repo.expanduser().absolute()
        self.issue = request.issue
        self.model_name = settings.model
        self.strategy: str = request.strategy
        self.suite: Suite | None = None
        self.baseline: Baseline | None = None
        self.watch: PageWatch | None = None
        self.evidence: Evidence | None = None
        self.ended_early: Ended | None = None
        self.review = Review()
        self._doing = ""
        self.tried = 0
        self.diff, self.files = "", tuple[str, ...]()
        self.delivery: dict[str, Any] = {}

    def sink(self, event: Event) -> None:
        """Pass an event on; the phase that it begins or ends is remembered, for a limit that is reached in it."""
        if isinstance(event, PhaseStarted):
            self._doing = f", in the phase {event.name}" + (f" ({event.detail})" if event.detail else "")
        elif isinstance(event, PhaseEnded):
            self._doing = ""
        self._sink(event)

    async def run(self) -> int:
        """Do everything, tell it as events that begin with RunStarted and end with RunEnded; returns the exit code.

        Errors: CancelledError on an interrupt, after the work tree is gone and RunEnded is told.
        """
        self.sink(
            RunStarted(
                run_id=self.run_id,
                command="fix",
                model=self.model_name,
                repo=str(self.repo),
                task=self.issue.title,
                version=__version__,
            )
        )
        for note in self.issue.notes:
            self.sink(Notice(text=note, level="warning"))
        deadline = asyncio.timeout(self.budget.remaining_s)
        try:
            async with deadline:
                summary = await self._phases()
        except TimeoutError:
            if not deadline.expired():
                raise
            limit = self.budget.reached() or "the time limit is reached"
            return self._ended("budget", Exit.BUDGET, f"{limit}{self._doing}")
        except Ended as end:
            return self._ended(end.outcome, end.exit_code, end.summary)
        except M3Error as error:
            return self._ended("error", error.exit_code, str(error))
        except ModelError as error:
            return self._ended("model_unavailable", model_exit(error), str(error))
        except asyncio.CancelledError as error:
            self._ended("interrupted", interrupt_exit(error), "interrupted; the work tree is as it was")
            raise
        except Exception as error:  # an edge: a fault of our own still ends the record of the run, and is raised
            self._ended("error", Exit.NOT_FIXED, f"m3 failed by a fault of its own: {type(error).__name__}: {error}")
            raise
        return self._ended("fixed", Exit.OK, summary)

    async def _phases(self) -> str:
        """From the work tree to the delivery; returns the summary of a proven repair, else raises Ended."""
        with open_worktree(self.repo, self.request.base) as worktree, self._nothing_lost(worktree) as handover:
            self.sink(
                FixAsked(base=worktree.base * worktree.is_clone, issue=issue_json(self.issue), choices=self._choices)
            )
            handover.check()
            for note in self.settings.notes:
                self.sink(Notice(text=note, level="warning"))
            for note in worktree.notes:
                self.sink(Notice(text=note))
            confinement = self._confinement(worktree)
            confinement.tell(self.sink)
            self.suite = Suite(
                root=worktree.root,
                origin=worktree.origin,
                spill_dir=self.spill_dir,
                command=self.request.test_command,
                environment=self.settings.command_environment,
                sandbox=confinement.sandbox,
                unconfined=confinement.unconfined,
                secrets=self.settings.secrets,
                first_limit_s=min(FIRST_LIMIT_S, self.settings.time_limit_s),
            )
            if self.request.page is not None:
                self.watch = handover.watch = self._watch(self.request.page, worktree, self.suite)
                await self.watch.look_before()
            lacking = await self._take_baseline(self.suite, worktree)
            model = await self.opener(self.settings)
            try:
                self._choose(model, lacking)
                await self._repair(model, worktree, self.suite)
                self.files, self.diff = worktree.changed(), worktree.diff()
                await self._review(model)
            finally:
                await model.aclose()
            handover.write_patch()
            summary = self._what_is_proven()
            await handover.deliver(summary, self._report)
            return f"fixed: {summary}"

    @property
    def _choices(self) -> dict[str, Any]:
        """The options of this run, as `m3agent.fix.rerun` reads them."""
        of_settings = {name: getattr(self.settings, name) for name in ("model", *SETTLED)}
        return {name: getattr(self.request, name) for name in CHOSEN} | of_settings

    @contextlib.contextmanager
    def _nothing_lost(self, worktree: WorkTree) -> Iterator[Handover]:
        """What hands the change over. However the work ends, a change that lies there is kept as a patch and told."""
        handover = Handover(
            self.request, self.settings, self.repo, worktree, self.delivery, self.run_id, keep=self.keep
        )
        try:
            yield handover
        except BaseException:
            with contextlib.suppress(GitFailed, M3Error, OSError):  # what ended the work is what the person must hear
                self.files, self.diff = worktree.changed(), worktree.diff()
                if self.files and "patch" not in self.delivery:
                    handover.write_patch()
            raise

    async def _review(self, model: LanguageModel) -> None:
        if self.evidence is None or not self.evidence.proven:
            return
        if not model.info.is_nano:
            start = self._phase("review", "a fresh fork that sees the issue and the diff")
        self.review = await review(
            model,
            self.issue,
            self.diff,
            self.budget,
            self.sink,
            seed=self.request.seed,
            pictures=self.request.pictures,
        )
        if not model.info.is_nano:
            self._phase_ended("review", self.review.verdict or self.review.missing, start)

    @property
    def _seen(self) -> tuple[Picture, ...]:
        """The pictures of the issue, and the page before the work."""
        return (*self.request.pictures, *((self.watch.before,) if self.watch else ()))

    def _confinement(self, worktree: WorkTree) -> Confinement:
        return open_confinement(self.settings, worktree.root, origin=worktree.origin, lasting_tmp=False)

    def _may_be_several(self, worktree: WorkTree, suite: Suite) -> bool:
        """Whether more work trees may be used: without a sandbox two runs could meet at a port or a file outside."""
        return worktree.is_clone and suite.sandbox is not None

    @contextlib.contextmanager
    def _another(self, worktree: WorkTree, suite: Suite) -> Iterator[Place]:
        """One more work tree of the same commit, and the same tests in it."""
        with open_worktree(worktree.origin, worktree.base) as other:
            sandbox = self._confinement(other).sandbox
            yield Place(other, dataclasses.replace(suite, root=other.root, sandbox=sandbox))

    def _watch(self, page: Page, worktree: WorkTree, suite: Suite) -> PageWatch:
        context = ToolContext(
            root=worktree.root,
            spill_dir=self.spill_dir,
            environment=dict(suite.environment),
            sandbox=suite.sandbox,
            unconfined=suite.unconfined,
            disposable=True,
            secrets=suite.secrets,
        )
        return PageWatch(page, worktree, context, self.sink, build=self.request.build, network=self.settings.network)

    async def _take_baseline(self, suite: Suite, worktree: WorkTree) -> Ended | None:
        """Take the baseline. Returns why only a free agent may go on: no tests, or none that fails."""
        start = self._phase("baseline", "the tests before any change")
        try:
            self.baseline = await take_baseline(suite, self.issue)
        except Ended as end:
            self._phase_ended("baseline", end.summary, start)
            raise
        worktree.settle()
        if not self.baseline.targets:
            lacking = self.baseline.not_reproduced()
            self._phase_ended("baseline", lacking.summary, start)
            will_search = self.request.strategy == "search" or (
                self.request.strategy == "auto" and self.settings.model == "nano"
            )
            if will_search:  # known without loading the model
                raise lacking
            return lacking
        counts = self.baseline.report.counts
        failing = f"{counts.failed + counts.errors} failing, {len(self.baseline.targets)} of them belong to the issue"
        self._phase_ended("baseline", f"{counts.passed} passed, {failing}", start)
        return None

    def _choose(self, model: LanguageModel, lacking: Ended | None) -> None:
        """Name the model and settle the strategy: the embedded model searches, a large one works freely."""
        self.model_name = model.info.name
        if model.info.note:
            self.sink(Notice(text=model.info.note))
        for notice in told(self._seen, model.info, self.settings.image_rule, self.spill_dir):
            self.sink(notice)
        if self.request.strategy == "auto":
            self.strategy = "search" if model.info.is_nano else "agent"
        if lacking is not None and self.strategy == "search":
            raise lacking

    async def _repair(self, model: LanguageModel, worktree: WorkTree, suite: Suite) -> None:
        assert self.baseline is not None, "it comes first"
        looks = not reads_first(model.info)
        if not looks:
            await self._read_pictures(model)
        if self.strategy == "agent":
            options = Options(
                max_tokens=self.settings.max_tokens, temperature=self.settings.temperature, seed=self.request.seed
            )
            self.evidence, self.ended_early = await run_agent(
                model,
                self.issue,
                worktree,
                suite,
                self.baseline,
                self.budget,
                self.sink,
                options,
                self.request.mode,
                self.settings.rules,
                pictures=self.request.pictures if looks else (),
                watch=self.watch,
            )
            return
        search = Search(
            model,
            worktree,
            suite,
            self.baseline,
            self.budget,
            self.sink,
            open_another=partial(self._another, worktree, suite) if self._may_be_several(worktree, suite) else None,
            max_candidates=self.request.candidates,
            seed=self.request.seed,
        )
        try:
            result = await search.run(self.issue, parts_for(self._seen, model.info) if looks else ())
        finally:
            self.tried = search.tried
        start = self._phase("verify", "the whole suite, and the targets without the change")
        self.evidence = await verify(worktree, suite, self.baseline, result.after)
        self._phase_ended("verify", self.evidence.reason or "undoing the change makes the tests fail again", start)

    async def _read_pictures(self, model: LanguageModel) -> None:
        """Let nano read the issue's pictures; what it read belongs to the issue from now on."""
        for picture, part in zip(self.request.pictures, parts_for(self.request.pictures, model.info), strict=True):
            text = await read_picture(model, part)
            found = f"read from the picture: {text.replace(chr(10), ' at ')}" if text else "nothing could be read"
            self.sink(Notice(text=f"{picture.name}: {found}"))
            self.issue = with_read(self.issue, text)

    def _what_is_proven(self) -> str:
        """One sentence, else raises Ended. What is flaky is not counted: it passes and fails by itself."""
        evidence = self.evidence
        if evidence is None:
            raise Ended("unverified", "changed, but no tests exist that could verify it; the change was not applied")
        if not evidence.proven:
            raise self.ended_early or Ended("not_fixed", f"not fixed: {evidence.reason}")
        if evidence.repaired:
            shown = f"failing tests that pass now: {len(evidence.repaired)}"
        else:
            shown = f"tests of the change that fail without it and pass with it: {len(evidence.shown)}"
        return f"{shown}; every other test is as it was"

    def _report(self) -> dict[str, Any]:
        return build_report(
            issue=self.issue,
            repo=self.repo,
            model=self.model_name,
            strategy=self.strategy,
            budget=self.budget,
            suite=self.suite,
            baseline=self.baseline,
            evidence=self.evidence,
            review=self.review,
            pictures=len(self.request.pictures),
            diff=self.diff,
            files=self.files,
            candidates_tried=self.tried,
            candidates_limit=self.request.candidates,
            delivery=self.delivery,
            page=self.watch.report() if self.watch else None,
        )

    def _ended(self, outcome: str, code: Exit, summary: str) -> int:
        report = self._report()
        text = "\n".join(part for part in (summary, evidence_text(report)) if part)
        self.sink(
            RunEnded(
                exit_code=int(code), outcome=outcome, summary=text, duration_s=self.budget.elapsed_s, report=report
            )
        )
        return int(code)

    def _phase(self, name: str, detail: str) -> float:
        self.sink(PhaseStarted(name=name, detail=detail))
        return time.monotonic()

    def _phase_ended(self, name: str, summary: str, start: float) -> None:
        self.sink(PhaseEnded(name=name, summary=summary, duration_s=time.monotonic() - start))
