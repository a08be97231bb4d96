"""The *search* strategy: run the tests, let the model rank the suspects and propose edits, try them until one holds.

All proposals are forks of one conversation, so a local engine computes the shared beginning once. Only the path that
won enters the conversation, as ordinary messages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from typing import Any

from m3_tools.base import DiffBlock, TestsBlock, ToolContext, ToolResult, call_tool
from m3_tools.read import ReadTool
from m3_tools.report import TestReport, failure_lines, report_text
from m3agent.budget import Budget
from m3agent.events import CandidateTried, Notice, PhaseEnded, PhaseStarted, ToolEnded, ToolStarted
from m3agent.fix.baseline import Baseline
from m3agent.fix.candidates import Candidate, CandidateMaker, Proposal, line_number, touches_run_code
from m3agent.fix.checks import run_checks
from m3agent.fix.issue import Issue
from m3agent.fix.mutations import mutations
from m3agent.fix.outcome import Ended
from m3agent.fix.probes import Opener, Place, Probe, Probes, num_cores
from m3agent.fix.prompt import issue_text, search_tools
from m3agent.fix.ranking import Ranked, fused_log_shares
from m3agent.fix.suite import Suite
from m3agent.fix.suspects import Suspect, find_suspects
from m3agent.fix.trial import Trial, judge
from m3agent.fix.verify import worse
from m3agent.fix.worktree import Entry, WorkTree
from m3agent.llm.protocol import BadReply, ContextFull, LanguageModel, Options
from m3agent.messages import ImagePart, ToolCall, assistant, tool_result, user
from m3agent.prompt import Conversation, system_prompt
from m3agent.sinks import EventSink
from m3agent.turn import Reply, take_turn

MAX_READ_CANDIDATES = 16
BREADTH = 6
"""So many suspects are read; the fault is among the first few or it is not found at all."""
BEAMS = 50
"""Edits that the model writes of one suspect; each takes a row of every step."""
EXPECTED_EDIT_SCORE = -2.0
"""About the log-probability that the best edit of a suspect has; few are better."""
MAX_EDIT_TOKENS = 120
MAX_SENTENCE_TOKENS = 60


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The change lies in the work tree. `after` is the whole suite with it; `tried` counts the edits that were run."""

    after: TestReport
    tried: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Read:
    """A fork of the conversation in which one suspect was read. `score` is the log of its share of the suspicion."""

    suspect: Suspect
    conversation: Conversation
    call: ToolCall
    text: str
    score: float


class Search:
    """One search: what it works on is given when it is built, `run` does the work."""

    def __init__(
        self,
        model: LanguageModel,
        worktree: WorkTree,
        suite: Suite,
        baseline: Baseline,
        budget: Budget,
        sink: EventSink,
        *,
        open_another: Opener | None,
        max_candidates: int,
        seed: int | None,
    ):
        self.model, self.worktree, self.suite, self.baseline = model, worktree, suite, baseline
        self.open_another = open_another
        self.budget, self.sink, self.max_candidates = budget, sink, max_candidates
        self.options = Options(max_tokens=MAX_EDIT_TOKENS, temperature=0.0, thinking="disabled", seed=seed)
        self.tools = search_tools()
        self.conversation = Conversation(sink)
        self.tried = 0
        self._calls = 0

    async def run(self, issue: Issue, images: Sequence[ImagePart] = ()) -> SearchResult:
        """Find an edit after which the targets pass and nothing else breaks; leave it in the work tree.

        Errors: Ended when no candidate holds or a budget is used up, ModelError of the model.
        """
        self.conversation.add(system_prompt(self.model.info, command="fix"))
        self.conversation.add(user(issue_text(issue, self.model.info), *images))
        await self._report_tests(self.baseline.report)
        suspects = find_suspects(self.baseline.report, self.baseline.targets, self.worktree.root)
        if not suspects:
            raise Ended("not_fixed", "the failing tests run no code of this repository that could be changed")
        reads = await self._locate(suspects)
        start = self._start("candidates", f"at most {self.max_candidates} edits")
        found = await self._first_that_holds(self._candidates(reads))
        if found is None:
            self._end("candidates", f"none of {self.tried} edits holds", start)
            raise Ended("not_fixed", f"none of {self.tried} tried edits makes the failing tests pass")
        candidate, after = found
        self._end("candidates", f"edit {self.tried} holds", start)
        await self._tell(candidate, reads, after)
        return SearchResult(after=after, tried=self.tried)

    async def _first_that_holds(self, candidates: AsyncIterator[Candidate]) -> tuple[Candidate, TestReport] | None:
        """The first candidate that holds, which then lies in the work tree, and the whole suite's report."""
        load_plugins = await self.suite.needs_plugins(self.baseline.report, limit_s=self.baseline.limit_s)
        first, cores = Place(self.worktree, self.suite), num_cores()
        with Probes(first, self.baseline, self.open_another, most=cores, load_plugins=load_plugins) as probes:
            async with contextlib.aclosing(self._probed(candidates, probes)) as probed:
                async for probe in probed:
                    after = await self._judged(probe, load_plugins=load_plugins)
                    if after is not None:
                        return probe.candidate, after
        return None

    async def _report_tests(self, report: TestReport) -> None:
        """The model's call of `test`, answered with a run that was already made."""
        call = await self._call("test", self.conversation) or self._own_call("test", {})
        self.conversation.add(assistant(calls=(call,)))
        counts = report.counts
        block = TestsBlock(
            passed=counts.passed + counts.xfailed + counts.xpassed,
            failed=counts.failed,
            errors=counts.errors,
            skipped=counts.skipped,
            duration_s=round(report.duration_s, 3),
            failures=failure_lines(report.failures),
        )
        self._answer(call, ToolResult(text=report_text(report), display=(block,)), report.duration_s)

    async def _locate(self, suspects: Sequence[Suspect]) -> list[_Read]:
        """The suspects worth reading, by the model's and the trace's word, each in a fork of its own, best first."""
        start = self._start("locate", f"{len(suspects)} functions ran")
        by_place = {(s.path, s.symbol): s for s in suspects}
        fixed = {
            "path": list(dict.fromkeys(s.path for s in suspects)),
            "symbol": list(dict.fromkeys(s.symbol for s in suspects)),
        }
        count = min(MAX_READ_CANDIDATES, max(2, len(suspects)))
        reply = await self._ask(self.conversation, "read", fixed, candidates=count)
        calls: dict[tuple[str, str], ToolCall] = {}
        for call, _ in sorted(_scored_calls(reply), key=lambda scored: -scored[1]):
            place = (str(call.arguments.get("path", "")), str(call.arguments.get("symbol", "")))
            if call.name == "read" and place in by_place:
                calls.setdefault(place, call)
        # Suspects that the model did not name stay in reach, behind those that it named.
        for place in by_place:
            if place not in calls:
                calls[place] = self._own_call("read", {"path": place[0], "symbol": place[1]})
        scores = fused_log_shares(list(calls), list(by_place))
        reads = []
        for place, score in sorted(scores.items(), key=lambda item: -item[1])[:BREADTH]:
            call = calls[place]
            context = ToolContext(root=self.worktree.root, spill_dir=self.suite.spill_dir)
            result = await call_tool(ReadTool(), call.arguments, context)
            if result.is_error:
                continue
            fork = self.conversation.fork(_nobody)
            fork.add(assistant(calls=(call,)))
            fork.add(tool_result(call.id, result.text))
            read = _Read(suspect=by_place[place], conversation=fork, call=call, text=result.text, score=score)
            reads.append(read)
        self._end("locate", ", ".join(read.suspect.symbol for read in reads), start)
        return reads

    async def _candidates(self, reads: Sequence[_Read]) -> AsyncIterator[Candidate]:
        """Edits of all suspects, best joint score first; then those of lines that no failing test ran.

        Two sources take turns: what the model wrote itself, and after two of those one mutation, in the order in which
        the model ranks them. On held-out bugs two of three repairs are among the first written ones, and mutations find
        a part of the others.
        Asking costs seconds, so a suspect is asked for its edits only when they can be expected to be the best left.
        """
        waiting = list(reads)
        written, mutated, unlikely = Ranked(), Ranked(), Ranked()
        maker = CandidateMaker(self.worktree.root, self.suite.spill_dir)
        turn = 0
        while True:
            while waiting and waiting[0].score + EXPECTED_EDIT_SCORE >= max(written.best, mutated.best):
                for proposal in await self._propose(waiting.pop(0)):
                    likely = mutated if proposal.is_mutation else written
                    (likely if touches_run_code(proposal) else unlikely).push(proposal)
            sources = (mutated, written) if turn % 3 == 2 else (written, mutated)
            source = next((s for s in (*sources, unlikely) if s), None)
            if source is None:
                return
            if candidate := await maker.make(source.pop()):
                turn += 1
                yield candidate

    async def _propose(self, read: _Read) -> list[Proposal]:
        """What the model would edit in one suspect, and how it ranks the mutations of it, if it can rank."""
        suspect = read.suspect
        labels = _labels(read.text)
        source = (self.worktree.root / suspect.path).read_bytes()
        proposed = [m.arguments(suspect.path) for m in mutations(source, suspect) if f"L{m.line}|" in labels]
        fixed = {"path": [suspect.path], "line": labels}
        try:
            reply = await self._ask(
                read.conversation, "edit_line", fixed, candidates=min(BEAMS, self.max_candidates), proposed=proposed
            )
        except ContextFull:
            self.sink(Notice(text=f"{suspect.symbol} is too long for the model's window", level="warning"))
            return []
        proposals: list[Proposal] = []
        for call, score in _scored_calls(reply):
            number = line_number(str(call.arguments.get("line", "")))
            inside = number is not None and suspect.first_line <= number <= suspect.last_line
            if call.name == "edit_line" and inside:
                proposals.append(Proposal(suspect=suspect, call=call, score=read.score + score))
        own = {id(c.call) for c in reply.candidates if c.proposed}
        return [dataclasses.replace(p, is_mutation=id(p.call) in own) for p in proposals]

    async def _probed(self, candidates: AsyncIterator[Candidate], probes: Probes) -> AsyncGenerator[Probe, None]:
        """What the targets say of each candidate, in the order of the candidates. The first is tried alone."""
        left = self.max_candidates
        while group := [c async for c in _first(candidates, min(left, probes.at_once))]:
            async with contextlib.aclosing(probes.run(group)) as probed:
                async for probe in probed:
                    yield probe
            left -= len(group)
            if left:
                await probes.grow()

    async def _judged(self, probe: Probe, *, load_plugins: bool) -> TestReport | None:
        """Run all tests with an edit without a fault. Their report if it holds; else the file is as before."""
        start, candidate = time.monotonic() - probe.duration_s, probe.candidate
        trial = probe.fault or Trial(verdict="broken", detail="interrupted")
        try:
            if probe.fault is None:
                self.worktree.put(candidate.path, Entry(candidate.after))
                trial = await judge(self.suite, self.baseline, load_plugins=load_plugins)
            if trial.after and (why := worse(await run_checks(self.worktree, self.suite, [candidate.path]))):
                trial = Trial(verdict="regressed", detail=why)
        finally:
            if probe.fault is None and trial.after is None:
                self.worktree.put(candidate.path, Entry(candidate.before))
            self.tried += 1
            self.sink(
                CandidateTried(
                    index=self.tried,
                    total=self.max_candidates,
                    score=candidate.proposal.score,
                    path=candidate.path,
                    diff=candidate.diff,
                    verdict=trial.verdict,
                    detail=trial.detail,
                    duration_s=time.monotonic() - start,
                )
            )
        return trial.after

    async def _tell(self, candidate: Candidate, reads: Sequence[_Read], after: TestReport) -> None:
        """The path that won enters the conversation, and the model has the last word."""
        read = next(r for r in reads if r.suspect == candidate.proposal.suspect)
        self.conversation.add(assistant(calls=(read.call,)))
        self._answer(read.call, ToolResult(text=read.text))
        call = candidate.proposal.call
        self.conversation.add(assistant(calls=(call,)))
        shown = candidate.result.display or (DiffBlock(path=candidate.path, diff=candidate.diff),)
        self._answer(call, dataclasses.replace(candidate.result, display=shown))
        await self._report_tests(after)
        try:
            options = dataclasses.replace(self.options, max_tokens=MAX_SENTENCE_TOKENS)
            reply = await self._turn(self.conversation, options)
        except (BadReply, ContextFull, Ended):
            return  # the repair holds without a sentence about it
        if reply.message.text.strip() and not reply.message.tool_calls:
            self.conversation.add(assistant(reply.message.text))

    async def _call(self, name: str, conversation: Conversation) -> ToolCall | None:
        """The model's call of the tool `name`, or None if it did not make it."""
        try:
            reply = await self._ask(conversation, name, {}, candidates=1)
        except BadReply:
            return None
        return next((call for call, _ in _scored_calls(reply) if call.name == name), None)

    async def _ask(
        self,
        conversation: Conversation,
        tool: str,
        fixed: Mapping[str, Sequence[str]],
        *,
        candidates: int,
        proposed: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        options = dataclasses.replace(
            self.options, tool_choice=tool, fixed_arguments=fixed, candidates=candidates, proposed=proposed
        )
        return await self._turn(conversation, options)

    async def _turn(self, conversation: Conversation, options: Options) -> Reply:
        if limit := self.budget.reached():
            raise Ended("budget", limit)
        number = self.budget.steps + 1
        reply = await take_turn(self.model, conversation.messages, self.tools, options, self.sink, number=number)
        self.budget.spend(reply.usage)
        return reply

    def _own_call(self, name: str, arguments: Mapping[str, Any]) -> ToolCall:
        """A call that the harness makes in the model's place, where the model did not make it."""
        self._calls += 1
        return ToolCall(id=f"own_{self._calls}", name=name, arguments=arguments)

    def _answer(self, call: ToolCall, result: ToolResult, duration_s: float = 0.0) -> None:
        self.sink(ToolStarted(call_id=call.id, name=call.name, arguments=call.arguments))
        self.sink(
            ToolEnded(
                call_id=call.id,
                name=call.name,
                is_error=result.is_error,
                duration_s=duration_s,
                text=result.text,
                display=result.display,
            )
        )
        self.conversation.add(tool_result(call.id, result.text, is_error=result.is_error))

    def _start(self, name: str, detail: str) -> float:
        self.sink(PhaseStarted(name=name, detail=detail))
        return time.monotonic()

    def _end(self, name: str, summary: str, start: float) -> None:
        self.sink(PhaseEnded(name=name, summary=summary, duration_s=time.monotonic() - start))


def _scored_calls(reply: Reply) -> list[tuple[ToolCall, float]]:
    """Alternatives with their scores; a plain call, from a model that gives no alternatives, counts as certain."""
    return [(c.call, c.score) for c in reply.candidates] or [(call, 0.0) for call in reply.message.tool_calls]


async def _first(candidates: AsyncIterator[Candidate], count: int) -> AsyncIterator[Candidate]:
    """The next `count` of them, or fewer where there are no more."""
    for _ in range(count):
        if (candidate := await anext(candidates, None)) is None:
            return
        yield candidate


def _labels(text: str) -> list[str]:
    """The line labels in the result of `read`."""
    return [f"{line.partition('|')[0]}|" for line in text.splitlines()[1:] if line.startswith("L") and "|" in line]


def _nobody(event: object) -> None:
    """Forks are not announced: they are no part of the conversation until one of them wins."""
