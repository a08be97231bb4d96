"""The loop on real tools with a scripted model."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from m3_tools.base import Tool, ToolArgs, ToolContext, ToolResult
from m3_tools.toolset import all_tools
from m3agent.approval import Answer, Approver, Mode, Question
from m3agent.budget import Budget
from m3agent.events import MessageAdded, Notice, ToolEnded, ToolOutput, ToolStarted
from m3agent.exits import Exit
from m3agent.llm.protocol import BadReply, ContextFull, Finished, Options, TextDelta, ToolCallReady, Unavailable
from m3agent.llm.scripted import ScriptedModel, Turn
from m3agent.loop import LoopResult, run_loop
from m3agent.messages import Message, ToolCall, assistant, system, user
from m3agent.prompt import Conversation, open_calls
from m3agent.sinks import Recorder


def call(name: str, number: int = 1, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{number}", name=name, arguments=arguments)


class Bench:
    """A loop ready to run; what happened is in `recorder`, `conversation` and `model`."""

    def __init__(self, turns: Sequence[Turn], context: ToolContext, tools: Sequence[Tool[Any]] | None = None):
        self.recorder = Recorder()
        self.model = ScriptedModel(turns)
        self.conversation = Conversation(self.recorder, [system("S"), user("repair add")])
        self.context, self.tools = context, all_tools() if tools is None else tools

    async def loop(
        self, *, mode: Mode = "auto", approve: Approver | None = None, budget: Budget | None = None
    ) -> LoopResult:
        return await run_loop(
            self.model,
            self.conversation,
            self.tools,
            self.context,
            sink=self.recorder,
            options=Options(seed=1),
            budget=budget or Budget(max_steps=20),
            mode=mode,
            approve=approve,
        )

    def run(self, **choices: Any) -> LoopResult:
        result = asyncio.run(asyncio.wait_for(self.loop(**choices), 60))
        assert open_calls(self.conversation.messages) == []
        return result

    def results(self) -> list[Message]:
        return [m for m in self.conversation.messages if m.role == "tool"]


class SlowTool(Tool[ToolArgs]):
    name: ClassVar[str] = "slow"
    description: ClassVar[str] = "Waits."
    args_type: ClassVar[type[ToolArgs]] = ToolArgs

    async def run(self, args: ToolArgs, context: ToolContext) -> ToolResult:
        if context.on_output:
            context.on_output("waiting\n")
        await asyncio.sleep(30)
        return ToolResult(text="done")


class FaultyTool(SlowTool):
    name: ClassVar[str] = "faulty"

    async def run(self, args: ToolArgs, context: ToolContext) -> ToolResult:
        raise ZeroDivisionError("a fault")


def test_a_repair_reads_edits_tests_and_answers(context: ToolContext, repo: Path) -> None:
    bench = Bench(
        [
            assistant("I look.", calls=(call("read", path="sums.py"), call("glob", 2, pattern="*.py"))),
            assistant(calls=(call("edit", path="sums.py", old="a - b", new="a + b"),)),
            assistant(calls=(call("test"),)),
            assistant("Repaired."),
        ],
        context,
    )
    result = bench.run()
    assert (result.outcome, result.text, result.exit_code) == ("answered", "Repaired.", Exit.OK)
    assert (repo / "sums.py").read_text() == "def add(a, b):\n    return a + b\n"
    assert "1 passed" in bench.results()[-1].text
    started = [e.name for e in bench.recorder.events if isinstance(e, ToolStarted)]
    assert started == ["read", "glob", "edit", "test"]


def test_the_prompt_only_grows(context: ToolContext) -> None:
    turns = [assistant(calls=(call("read", path="sums.py"),)), assistant("x", calls=(call("glob", pattern="*"),))]
    bench = Bench([*turns, assistant("done")], context)
    bench.run()
    prompts = [asked.messages for asked in bench.model.asked]
    assert len(prompts) == 3
    for earlier, later in itertools.pairwise(prompts):
        assert later[: len(earlier)] == earlier
        assert len(later) > len(earlier)
    assert all(asked.tools == bench.model.asked[0].tools for asked in bench.model.asked)


def test_every_message_is_an_event_in_order(context: ToolContext) -> None:
    bench = Bench([assistant("a", calls=(call("glob", pattern="*"),)), assistant("b")], context)
    bench.run()
    added = tuple(e.message for e in bench.recorder.events if isinstance(e, MessageAdded))
    assert added == bench.conversation.messages[2:]


def test_an_unknown_tool_is_answered_with_the_names_that_exist(context: ToolContext) -> None:
    bench = Bench([assistant(calls=(call("reed", path="x"),)), assistant("ok")], context)
    assert bench.run().outcome == "answered"
    assert "There is no tool 'reed'. Did you mean read?" in bench.results()[0].text
    assert "read" in bench.results()[0].text


def test_a_tool_that_fails_by_its_own_fault_does_not_end_the_run(context: ToolContext) -> None:
    bench = Bench([assistant(calls=(call("faulty"),)), assistant("ok")], context, [FaultyTool()])
    assert bench.run().outcome == "answered"
    assert "ZeroDivisionError: a fault" in bench.results()[0].text


def test_the_same_failing_call_is_noted_the_second_time_and_stops_the_third(context: ToolContext) -> None:
    again = assistant(calls=(call("read", path="missing.py"),))
    bench = Bench([again, again, again, assistant("I looked for missing.py."), assistant("never")], context)
    result = bench.run()
    assert (result.outcome, result.exit_code) == ("stuck", Exit.NOT_FIXED)
    assert result.text == "I looked for missing.py."
    texts = [m.text for m in bench.results()]
    assert "Do not send it again" not in texts[0]
    assert "Do not send it again" in texts[1]
    assert len(bench.model.asked) == 4
    assert "This run ends here" in bench.model.asked[3].messages[-1].text


def test_a_stuck_run_runs_no_call_of_its_last_reply(context: ToolContext, repo: Path) -> None:
    again = assistant(calls=(call("read", path="missing.py"),))
    write = assistant(calls=(call("write", path="made.py", content="x = 1\n"),))
    assert Bench([again, again, again, write], context).run().outcome == "stuck"
    assert not (repo / "made.py").exists()


def test_another_call_between_two_failures_starts_the_count_anew(context: ToolContext) -> None:
    fail, work = assistant(calls=(call("read", path="no.py"),)), assistant(calls=(call("glob", pattern="*"),))
    assert Bench([fail, work, fail, work, fail, work, assistant("end")], context).run().outcome == "answered"


def test_equal_failures_in_one_reply_count_once(context: ToolContext) -> None:
    thrice = assistant(calls=tuple(call("read", i, path="no.py") for i in range(3)))
    bench = Bench([thrice, assistant("end")], context)
    assert bench.run().outcome == "answered"
    assert not any("Do not send it again" in m.text for m in bench.results())


def test_the_same_failure_after_a_change_is_a_new_one(context: ToolContext) -> None:
    def turn(number: int) -> Message:
        new = call("write", 1, path=f"made{number}.py", content="x = 1\n")
        return assistant(calls=(new, call("read", 2, path="no.py")))

    assert Bench([*map(turn, range(4)), assistant("end")], context).run().outcome == "answered"


def test_an_empty_reply_is_asked_again_and_the_third_ends_the_run(context: ToolContext) -> None:
    empty = assistant("", reasoning="hm")
    bench = Bench([empty, empty, assistant("done")], context)
    assert (bench.run().outcome, bench.recorder.events[-1].message.text) == ("answered", "done")  # type: ignore[union-attr]
    assert "Your reply was empty" in bench.model.asked[1].messages[-1].text
    result = Bench([empty] * 3, context).run()
    assert (result.outcome, result.exit_code) == ("bad_reply", Exit.MODEL_UNAVAILABLE)


def test_a_call_that_does_not_parse_is_told_to_the_model(context: ToolContext) -> None:
    torn: Turn = [TextDelta(text="I edit."), BadReply("the arguments do not parse: line 3", by_model=True)]
    bench = Bench([torn, assistant("fine")], context)
    assert bench.run().text == "fine"
    assert "do not parse: line 3" in bench.model.asked[1].messages[-1].text


def test_a_truncated_call_is_never_run_and_the_model_is_told(context: ToolContext, repo: Path) -> None:
    write = ToolCallReady(call=call("write", path="sums.py", content="half"))
    cut: Turn = [TextDelta(text="I wri"), write, Finished(reason="length")]
    bench = Bench([cut, assistant("shorter")], context)
    assert bench.run().outcome == "answered"
    assert (repo / "sums.py").read_text().startswith("def add")
    assert not any(isinstance(e, ToolStarted) for e in bench.recorder.events)
    assert "cut off" in bench.model.asked[1].messages[-1].text


def test_truncation_twice_in_a_row_stops(context: ToolContext) -> None:
    cut: Turn = [TextDelta(text="long"), Finished(reason="length")]
    assert Bench([cut, cut, assistant("never")], context).run().outcome == "truncated"


def test_a_broken_reply_is_asked_again_and_leaves_no_trace_in_the_history(context: ToolContext) -> None:
    broken: Turn = [TextDelta(text="gar"), BadReply("a call does not parse")]
    bench = Bench([broken, assistant("fine")], context)
    assert bench.run().text == "fine"
    assert [m.text for m in bench.conversation.messages if m.role == "assistant"] == ["fine"]
    assert bench.model.asked[0].messages == bench.model.asked[1].messages
    assert bench.model.asked[0].options.seed != bench.model.asked[1].options.seed


def test_broken_replies_in_a_row_end_the_run(context: ToolContext) -> None:
    broken: Turn = [BadReply("garbage")]
    result = Bench([broken] * 3, context).run()
    assert (result.outcome, result.exit_code) == ("bad_reply", Exit.MODEL_UNAVAILABLE)


def test_a_full_window_ends_the_run_with_the_budget_code(context: ToolContext) -> None:
    full: Turn = [ContextFull("9000 tokens do not fit 8192")]
    result = Bench([full], context).run()
    assert (result.outcome, result.exit_code, result.detail) == ("context_full", 5, "9000 tokens do not fit 8192")


def test_a_model_that_is_gone_is_an_error_and_the_history_stays_valid(context: ToolContext) -> None:
    gone: Turn = [Unavailable("down")]
    bench = Bench([assistant(calls=(call("glob", pattern="*"),)), gone], context)
    with pytest.raises(Unavailable):
        bench.run()
    assert open_calls(bench.conversation.messages) == []


def test_the_step_budget_stops_before_the_next_turn(context: ToolContext) -> None:
    turns = [assistant(calls=(call("glob", i, pattern=f"*{i}"),)) for i in range(9)]
    bench = Bench(turns, context)
    result = bench.run(budget=Budget(max_steps=3))
    assert (result.outcome, result.exit_code) == ("budget", Exit.BUDGET)
    assert "3 steps" in result.detail
    assert len(bench.model.asked) == 3


def test_the_time_budget_interrupts_a_running_tool(context: ToolContext) -> None:
    bench = Bench([assistant(calls=(call("slow"), call("slow", 2)))], context, [SlowTool()])
    result = bench.run(budget=Budget(time_limit_s=0.2))
    assert result.outcome == "budget"
    assert [m.is_error for m in bench.results()] == [True, True]
    assert "interrupted" in bench.results()[0].text
    assert "nothing was done" in bench.results()[1].text


def test_an_interrupt_in_a_tool_leaves_a_result_for_every_call(context: ToolContext) -> None:
    bench = Bench([assistant(calls=(call("slow"), call("slow", 2)))], context, [SlowTool()])

    async def main() -> None:
        task = asyncio.create_task(bench.loop())
        while not any(isinstance(e, ToolOutput) for e in bench.recorder.events):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert open_calls(bench.conversation.messages) == []
    assert [e.is_error for e in bench.recorder.events if isinstance(e, ToolEnded)] == [True]
    assert [m.tool_call_id for m in bench.results()] == ["c1", "c2"]


def test_an_interrupt_while_the_model_writes_adds_nothing(context: ToolContext) -> None:
    bench = Bench([[TextDelta(text="half"), 30.0, Finished(reason="stop")]], context)

    async def main() -> None:
        task = asyncio.create_task(bench.loop())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert len(bench.conversation.messages) == 2
    assert bench.model.cancelled == 1


@pytest.mark.parametrize("mode", ["plan", "ask", "edit"])
def test_what_needs_an_approval_is_refused_where_nobody_is(context: ToolContext, repo: Path, mode: Mode) -> None:
    bench = Bench([assistant(calls=(call("shell", command="touch made"),)), assistant("I needed a command.")], context)
    result = bench.run(mode=mode)
    assert not (repo / "made").exists()
    assert bench.results()[0].is_error
    assert result.exit_code == (Exit.OK if mode == "plan" else Exit.NEEDS_APPROVAL)


def test_a_refusal_that_the_model_works_around_does_not_block(context: ToolContext) -> None:
    turns = [assistant(calls=(call("shell", command="ls"),)), assistant(calls=(call("glob", pattern="*"),))]
    assert Bench([*turns, assistant("done")], context).run(mode="edit").exit_code == Exit.OK


def test_a_refusal_after_a_change_does_not_undo_the_answer(context: ToolContext) -> None:
    write = assistant(calls=(call("write", path="made.py", content="x = 1\n"),))
    shell = assistant(calls=(call("shell", command="python made.py"),))
    result = Bench([write, shell, assistant("made.py is written; I could not run it")], context).run(mode="edit")
    assert result.exit_code == Exit.OK


@pytest.mark.parametrize(
    ("mode", "hidden"),
    [("auto", set()), ("edit", {"shell", "job"}), ("plan", {"shell", "job", "edit", "test"})],
)
def test_a_tool_that_can_never_run_is_not_offered(context: ToolContext, mode: Mode, hidden: set[str]) -> None:
    bench = Bench([assistant("ok")], context)
    bench.run(mode=mode)
    offered = {spec.name for spec in bench.model.asked[0].tools}
    assert {"shell", "job", "edit", "test", "read"} - offered == hidden


def test_where_a_person_can_be_asked_every_tool_is_offered(context: ToolContext) -> None:
    async def approve(question: Question) -> Answer:
        return Answer(accepted=False)

    bench = Bench([assistant("ok")], context)
    bench.run(mode="ask", approve=approve)
    assert {spec.name for spec in bench.model.asked[0].tools} == {tool.name for tool in all_tools()}


def test_a_person_may_accept_or_reject_with_a_reason(context: ToolContext, repo: Path) -> None:
    asked: list[Question] = []

    def answering(accepted: bool) -> Callable[[Question], Awaitable[Answer]]:
        async def approve(question: Question) -> Answer:
            asked.append(question)
            return Answer(accepted=accepted, reason="use sums2.py")

        return approve

    turns = [assistant(calls=(call("write", path="made.py", content="x = 1\n"),)), assistant("ok")]
    rejected = Bench(turns, context)
    assert rejected.run(mode="ask", approve=answering(False)).exit_code == Exit.OK
    assert "use sums2.py" in rejected.results()[0].text
    assert not (repo / "made.py").exists()
    Bench(turns, context).run(mode="ask", approve=answering(True))
    assert (repo / "made.py").read_text() == "x = 1\n"
    assert [q.tool for q in asked] == ["write", "write"]
    assert asked[0].arguments["path"] == "made.py"


def test_a_call_that_a_person_changed_is_judged_and_asked_for_anew(context: ToolContext, repo: Path) -> None:
    asked: list[Question] = []

    async def approve(question: Question) -> Answer:
        asked.append(question)
        changed = {**question.arguments, "content": "x = 2\n"} if len(asked) == 1 else None
        return Answer(accepted=True, arguments=changed)

    bench = Bench([assistant(calls=(call("write", path="made.py", content="x = 1\n"),)), assistant("ok")], context)
    bench.run(mode="ask", approve=approve)
    assert (repo / "made.py").read_text() == "x = 2\n"
    assert [question.arguments["content"] for question in asked] == ["x = 1\n", "x = 2\n"]
    assert bench.results()[0].text.startswith("The person changed this call before it ran")
    assert "x = 2" in bench.results()[0].text


@pytest.mark.parametrize("name", ["cmd", "command"])
def test_what_is_judged_and_shown_is_what_would_run(context: ToolContext, repo: Path, name: str) -> None:
    """A parameter under another tool's name is taken, so it must be judged as well."""
    asked: list[Question] = []

    async def approve(question: Question) -> Answer:
        asked.append(question)
        return Answer(accepted=False)

    bench = Bench([assistant(calls=(call("shell", **{name: "git reset --hard"}),)), assistant("ok")], context)
    bench.run(mode="auto", approve=approve)
    assert [question.arguments["command"] for question in asked] == ["git reset --hard"]
    assert "can destroy work" in asked[0].rule
    started = [event for event in bench.recorder.events if isinstance(event, ToolStarted)]
    assert started[0].arguments == {"command": "git reset --hard"}


def test_notices_tell_the_person_what_was_asked_again(context: ToolContext) -> None:
    bench = Bench([[BadReply("torn")], assistant("ok")], context)
    bench.run()
    assert [e.text for e in bench.recorder.events if isinstance(e, Notice)] == ["torn; asking again"]


kinds = st.sampled_from(["call", "bad", "torn", "empty", "cut", "unknown", "answer", "full"])


@settings(max_examples=40, deadline=None)
@given(st.lists(kinds, max_size=8))
def test_any_course_ends_with_a_valid_history_that_only_grew(names: list[str]) -> None:
    plans: dict[str, Turn] = {
        "call": assistant(calls=(call("glob", 1, pattern="*"), call("glob", 2, pattern="?"))),
        "bad": [TextDelta(text="x"), BadReply("bad")],
        "torn": [TextDelta(text="x"), BadReply("torn", by_model=True)],
        "empty": assistant("", reasoning="r"),
        "cut": [TextDelta(text="y"), Finished(reason="length")],
        "unknown": assistant(calls=(call("nothing"),)),
        "answer": assistant("end"),
        "full": [ContextFull("full")],
    }
    empty = ToolContext(root=Path("/nonexistent"), spill_dir=Path("/nonexistent"))
    bench = Bench([*(plans[name] for name in names), assistant("end")], empty, [])
    bench.run()
    for earlier, later in itertools.pairwise(bench.model.asked):
        assert later.messages[: len(earlier.messages)] == earlier.messages
