"""The agent loop: model turn, tool calls, results, next turn, until an answer without calls or a limit."""

from __future__ import annotations

import asyncio
import dataclasses
import difflib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from m3_tools.arguments import named_arguments
from m3_tools.base import Tool, ToolContext, ToolResult, call_tool, tool_spec
from m3agent.approval import HARMLESS, Approver, Decision, Mode, Question, decide
from m3agent.budget import Budget
from m3agent.events import Notice, ToolEnded, ToolOutput, ToolStarted
from m3agent.exits import Exit
from m3agent.llm.protocol import BadReply, ContextFull, LanguageModel, Options
from m3agent.messages import ImagePart, Message, ToolCall, tool_result, user
from m3agent.permissions.rules import Rule
from m3agent.prompt import Conversation
from m3agent.repetition import RepeatedFailures
from m3agent.sinks import EventSink
from m3agent.turn import Reply, take_turn

Outcome = Literal["answered", "budget", "stuck", "truncated", "bad_reply", "context_full", "needs_approval"]

BEFORE_IT_RAN = "interrupted before it ran; nothing was done"
WHILE_IT_RAN = "interrupted while it ran; part of it may have been done"
CHANGED = "The person changed this call before it ran; its arguments were: "
MAX_BAD_REPLIES = 3
MAX_EMPTY_REPLIES = 3
MAX_TRUNCATED = 2
EXIT_CODES: Mapping[Outcome, Exit] = {
    "answered": Exit.OK,
    "budget": Exit.BUDGET,
    "stuck": Exit.NOT_FIXED,
    "truncated": Exit.BUDGET,
    "bad_reply": Exit.MODEL_UNAVAILABLE,
    "context_full": Exit.BUDGET,
    "needs_approval": Exit.NEEDS_APPROVAL,
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopResult:
    """How a loop ended. `text` is the model's last answer; `detail` is one sentence for the person."""

    outcome: Outcome
    text: str
    detail: str

    @property
    def exit_code(self) -> Exit:
        return EXIT_CODES[self.outcome]


class _Stop(Exception):
    """Ends the loop from within; carries the result."""

    def __init__(self, outcome: Outcome, detail: str):
        super().__init__(detail)
        self.outcome: Outcome = outcome
        self.detail = detail


async def run_loop(
    model: LanguageModel,
    conversation: Conversation,
    tools: Sequence[Tool[Any]],
    context: ToolContext,
    *,
    sink: EventSink,
    options: Options,
    budget: Budget,
    mode: Mode | Callable[[], Mode],
    approve: Approver | None = None,
    rules: Sequence[Rule] = (),
    said: Callable[[], Sequence[Message]] = tuple,
) -> LoopResult:
    """Let the model work until it answers without a call, is stuck, or a limit is reached.

    Whatever ends the loop, every call in the conversation has a result afterwards. Without `approve` nothing is asked:
    the model is told only of the tools that may run unasked, and a call of another one is refused with a result that
    says so. If the run then ends with nothing changed, its outcome is `needs_approval`.
    A person may steer: what `said` gives joins the conversation before each turn, and a `mode` that is a function is
    asked before each call.
    Errors: Unavailable and Refused of the model, and CancelledError on an interrupt.
    """
    loop = _Loop(model, conversation, tools, context, sink, options, budget, mode, approve, rules, said)
    deadline = asyncio.timeout(budget.remaining_s)
    try:
        async with deadline:
            return await loop.run()
    except TimeoutError:
        if not deadline.expired():
            raise
        return LoopResult(outcome="budget", text=loop.text, detail=budget.reached() or "the time limit is reached")
    except _Stop as stop:
        return LoopResult(outcome=stop.outcome, text=loop.text, detail=stop.detail)
    except ContextFull as error:
        return LoopResult(outcome="context_full", text=loop.text, detail=str(error))
    finally:
        conversation.close_open_calls(BEFORE_IT_RAN)


class _Loop:
    def __init__(
        self,
        model: LanguageModel,
        conversation: Conversation,
        tools: Sequence[Tool[Any]],
        context: ToolContext,
        sink: EventSink,
        options: Options,
        budget: Budget,
        mode: Mode | Callable[[], Mode],
        approve: Approver | None,
        rules: Sequence[Rule],
        said: Callable[[], Sequence[Message]],
    ):
        self.model, self.conversation, self.context, self.sink = model, conversation, context, sink
        self.options, self.budget, self.approve, self.rules = options, budget, approve, rules
        self.mode: Callable[[], Mode] = mode if callable(mode) else lambda: mode
        self.said = said
        self.tools = {tool.name: tool for tool in tools}
        offered = [
            tool
            for tool in tools
            if approve is not None
            or decide(self.mode(), tool, rules=rules, unconfined=context.unconfined).verdict == "allow"
        ]
        names = {tool.name for tool in offered}
        self.specs = [tool_spec(tool) for tool in offered if not tool.needs or tool.needs in names]
        self.text = ""
        self._failures = RepeatedFailures()
        self._changed = False
        self._refused: list[str] = []

    async def run(self) -> LoopResult:
        truncated = empty = 0
        while True:
            if limit := self.budget.reached():
                raise _Stop("budget", limit)
            for message in self.said():
                self.conversation.add(message)
            reply = await self._reply()
            self.text = reply.message.text or self.text
            if reply.truncated:
                truncated += 1
                self._cut_off(reply, truncated)
                continue
            truncated = 0
            if reply.empty:
                empty += 1
                self._say_empty(empty)
                continue
            empty = 0
            self.conversation.add(reply.message)
            if not reply.message.tool_calls:
                if self._refused and not self._changed:
                    raise _Stop(
                        "needs_approval", f"an approval is needed for: {', '.join(self._refused)} (--mode auto)"
                    )
                return LoopResult(outcome="answered", text=self.text, detail="")
            self._refused = []
            for call in reply.message.tool_calls:
                await self._run_call(call)
            if stuck_on := self._failures.end_turn():
                await self._report_and_stop(stuck_on)

    async def _reply(self) -> Reply:
        """The next turn. A reply that breaks the protocol never enters the history; it is asked for again."""
        for attempt in range(1, MAX_BAD_REPLIES + 1):
            options = self.options
            if options.seed is not None:
                options = dataclasses.replace(options, seed=options.seed + self.budget.steps + 1000 * (attempt - 1))
            number = self.budget.steps + 1
            try:
                reply = await take_turn(
                    self.model, self.conversation.messages, self.specs, options, self.sink, number=number
                )
            except BadReply as error:
                last = attempt == MAX_BAD_REPLIES
                self.sink(Notice(text=str(error) if last else f"{error}; asking again", level="warning"))
                if last:
                    raise _Stop("bad_reply", f"{attempt} replies in a row were broken: {error}") from error
                if error.by_model:
                    self.conversation.add(user(f"Nothing of your reply was run: {error}. Send it again, whole."))
            else:
                self.budget.spend(reply.usage)
                return reply
        raise AssertionError("unreachable")

    def _cut_off(self, reply: Reply, count: int) -> None:
        """Keep what was said, run nothing of it, and tell the model."""
        self.sink(
            Notice(
                text=f"the reply was cut off at {self.options.max_tokens} tokens; nothing of it was run",
                level="warning",
            )
        )
        if reply.message.parts:
            self.conversation.add(reply.message)
        if count >= MAX_TRUNCATED:
            raise _Stop("truncated", f"{count} replies in a row were longer than {self.options.max_tokens} tokens")
        self.conversation.add(
            user(
                f"Your reply was cut off at {self.options.max_tokens} tokens and no call in it was run. "
                "Go on in smaller steps: one call with less text."
            )
        )

    def _say_empty(self, count: int) -> None:
        """Ask again for a reply that holds neither a word nor a call."""
        self.sink(Notice(text="the reply was empty; asking again", level="warning"))
        if count >= MAX_EMPTY_REPLIES:
            raise _Stop("bad_reply", f"{count} replies in a row were empty")
        self.conversation.add(user("Your reply was empty. Call a tool, or say in a sentence how the task ended."))

    async def _report_and_stop(self, name: str) -> None:
        """The run is stuck: the model may still say what it found, but no further call is run."""
        why = f"the same call failed again and again: {name}"
        if not self.budget.reached():
            self.conversation.add(
                user(f"This run ends here: {why}. No further call is run. Say shortly what you found and what is left.")
            )
            last = await self._reply()
            if last.message.parts:
                self.conversation.add(last.message)
            self.text = last.message.text or self.text
        raise _Stop("stuck", why)

    async def _run_call(self, call: ToolCall) -> None:
        """Run one call; its result enters the conversation, whatever happens."""
        self.sink(ToolStarted(call_id=call.id, name=call.name, arguments=self._named(call)))
        start = time.monotonic()
        rule, result = "", ToolResult(text=BEFORE_IT_RAN, is_error=True)
        try:
            rule, refusal, ran = await self._judged(call)
            start = time.monotonic()  # the time that a person took to answer is not the tool's
            result = ToolResult(text=WHILE_IT_RAN, is_error=True)
            result = self._noted(ran, refusal or await self._result(ran))
            if ran is not call:
                result = dataclasses.replace(result, text=f"{CHANGED}{json.dumps(ran.arguments)}\n\n{result.text}")
        finally:
            self.sink(
                ToolEnded(
                    call_id=call.id,
                    name=call.name,
                    is_error=result.is_error,
                    duration_s=time.monotonic() - start,
                    text=result.text,
                    display=result.display,
                    rule=rule,
                )
            )
            images = [ImagePart(media_type=image.media_type, data=image.data) for image in result.images]
            self.conversation.add(tool_result(call.id, result.text, *images, is_error=result.is_error))

    async def _judged(self, call: ToolCall) -> tuple[str, ToolResult | None, ToolCall]:
        """The rule that lets the call run, None, and the call as the person left it; or the rule that keeps it from
        running, and the result.
        """
        tool = self.tools.get(call.name)
        if tool is None:
            names = [spec.name for spec in self.specs]
            near = difflib.get_close_matches(call.name, names, n=1)
            meant = f" Did you mean {near[0]}?" if near else ""
            text = f"There is no tool {call.name!r}.{meant} The tools are: {', '.join(names)}."
            return "", ToolResult(text=text, is_error=True), call
        while True:
            rule, refusal, changed = await self._refusal(call, tool)
            if changed is None:
                return rule, ToolResult(text=refusal, is_error=True) if refusal else None, call
            call = dataclasses.replace(call, arguments=changed)
            self.sink(ToolStarted(call_id=call.id, name=call.name, arguments=self._named(call)))

    async def _result(self, call: ToolCall) -> ToolResult:
        context = dataclasses.replace(
            self.context, on_output=lambda text: self.sink(ToolOutput(call_id=call.id, text=text))
        )
        try:
            return await call_tool(self.tools[call.name], call.arguments, context)
        except Exception as error:  # an edge: a tool's own fault is reported to the model and must not end the run
            return ToolResult(
                text=f"{call.name} failed by a fault of its own: {type(error).__name__}: {error}", is_error=True
            )

    async def _refusal(self, call: ToolCall, tool: Tool[Any]) -> tuple[str, str, Mapping[str, Any] | None]:
        """The rule that decided, why the call must not run (for the model; empty when it may), and what a person made
        of its arguments, if they did.

        What is judged is what would run.
        """
        arguments = self._named(call)

        def decided(rules: Sequence[Rule]) -> Decision:
            return decide(
                self.mode(),
                tool,
                arguments,
                root=self.context.root,
                rules=rules,
                unconfined=self.context.unconfined,
                disposable=self.context.disposable,
            )

        decision = decided(self.rules)
        rule = decision.rule
        if decision.verdict == "allow":
            return rule, "", None
        if decision.verdict == "ask" and self.approve is not None:
            question = Question(
                tool=tool.name,
                arguments=arguments,
                rule=rule,
                allows=lambda further: decided([*self.rules, *further]).verdict == "allow",
            )
            answer = await self.approve(question)
            if answer.accepted:
                return answer.rule, "", answer.arguments
            why = f": {answer.reason}" if answer.reason else ""
            return "you refused it", f"The person refused this call{why}. Do not send it again.", None
        if decision.verdict == "ask":
            self._refused.append(tool.name)
            return rule, f"Not run: {rule}, and nobody can be asked. Go on without it, or say that it is needed.", None
        return rule, f"Not run: {rule}. Describe the change instead.", None

    def _named(self, call: ToolCall) -> Mapping[str, Any]:
        """The arguments as the tool will take them: what is judged, shown and asked for."""
        tool = self.tools.get(call.name)
        return call.arguments if tool is None else named_arguments(call.arguments, tool.args_type)

    def _noted(self, call: ToolCall, result: ToolResult) -> ToolResult:
        """Remember what worked and what failed; a failure that came before gets advice."""
        tool = self.tools.get(call.name)
        changes = tool is not None and not (tool.read_only or tool.name in HARMLESS or tool.name == "test")
        self._changed |= changes and not result.is_error
        advice = self._failures.note(call, result, changes=changes)
        return dataclasses.replace(result, text=f"{result.text}\n\n{advice}") if advice else result
