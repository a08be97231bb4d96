"""A run with every kind of event, for the demonstration and for the tests of what is drawn."""

from __future__ import annotations

from m3_tools.base import CommandBlock, DiffBlock, PictureBlock, TestsBlock, TextBlock, TodoBlock
from m3agent.events import (
    AnswerText,
    Aside,
    CandidateTried,
    Event,
    FixAsked,
    MessageAdded,
    Notice,
    PhaseEnded,
    PhaseStarted,
    Prefill,
    RequestStarted,
    RunEnded,
    RunStarted,
    Said,
    ThinkText,
    ToolEnded,
    ToolOutput,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)
from m3agent.messages import ToolCall, assistant

DIFF = """--- a/inventory/stock.py
+++ b/inventory/stock.py
@@ -39,5 +39,5 @@ def reorder_quantity(self, item):
     level = self.level(item)
-    if level > self.minimum:
+    if level >= self.minimum:
         return 0
     return self.maximum - level
"""
FAILURE = "tests/test_stock.py::test_reorder_at_the_minimum"
ANSWER = "The comparison was **strict**, so an item exactly at its minimum was ordered again. Now `>=` is used.\n"
_TESTS = TestsBlock(passed=11, failed=1, errors=0, skipped=0, duration_s=0.42, failures=(FAILURE,))
_CALL = ToolCall(
    id="c2", name="edit_line", arguments={"path": "inventory/stock.py", "action": "replace", "line": "L40|"}
)

SAMPLES: tuple[Event, ...] = (
    RunStarted(
        run_id="20260930-141503-9f3a",
        command="fix",
        model="nano (25M parameters, embedded)",
        repo="~/inventory",
        task="Items at their minimum are ordered again",
        version="0.1.0",
    ),
    FixAsked(base="0adefa6", issue={"title": "Items at their minimum are ordered again"}, choices={"seed": 1}),
    RequestStarted(request="20260930-141503-9f3a/1b2c3d4e"),
    Said(text="repair it, please"),
    PhaseStarted(name="baseline", detail="python -m pytest"),
    ToolStarted(call_id="c1", name="test", arguments={}),
    ToolOutput(call_id="c1", text="tests/test_stock.py ...F\n"),
    ToolEnded(
        call_id="c1", name="test", is_error=False, duration_s=0.61, text="11 passed, 1 failed", display=(_TESTS,)
    ),
    PhaseEnded(name="baseline", summary="1 failing test", duration_s=0.7),
    PhaseStarted(name="repair", detail="the model works in its own worktree"),
    TurnStarted(turn=1),
    Prefill(done_tokens=512, total_tokens=1310),
    Prefill(done_tokens=1310, total_tokens=1310),
    ThinkText(text="The failing test stands exactly at the minimum. "),
    ThinkText(text="A strict comparison is the likely cause."),
    AnswerText(text="I change the comparison "),
    AnswerText(text="in `reorder_quantity`."),
    TurnEnded(
        turn=1, finish="tool_calls", prompt_tokens=1310, cached_tokens=1152, completion_tokens=64, duration_s=1.9
    ),
    MessageAdded(message=assistant("I change the comparison in `reorder_quantity`.", calls=(_CALL,))),
    ToolStarted(call_id="c2", name="edit_line", arguments=_CALL.arguments),
    ToolEnded(
        call_id="c2",
        name="edit_line",
        is_error=False,
        duration_s=0.01,
        text="replaced line 40",
        display=(DiffBlock(path="inventory/stock.py", diff=DIFF),),
    ),
    ToolStarted(call_id="c3", name="shell", arguments={"command": "ls *.cfg"}),
    ToolEnded(
        call_id="c3",
        name="shell",
        is_error=True,
        duration_s=0.02,
        text="exit code 2",
        display=(CommandBlock(command="ls *.cfg", exit_code=2, duration_s=0.02, output="ls: cannot access '*.cfg'\n"),),
    ),
    ToolStarted(call_id="c4", name="read", arguments={"path": "inventory/stock.py", "symbol": "Stock.level"}),
    ToolEnded(
        call_id="c4",
        name="read",
        is_error=False,
        duration_s=0.0,
        text="…",
        display=(TextBlock(text="", title="12 lines"),),
    ),
    ToolStarted(call_id="c5", name="todo", arguments={}),
    ToolEnded(
        call_id="c5",
        name="todo",
        is_error=False,
        duration_s=0.0,
        text="…",
        display=(TodoBlock(items=(("done", "find the cause"), ("active", "repair it"), ("pending", "run the tests"))),),
    ),
    ToolStarted(call_id="c6", name="edit", arguments={"path": "inventory/shelf.py"}),
    ToolEnded(
        call_id="c6",
        name="edit",
        is_error=True,
        duration_s=0.0,
        text="inventory/shelf.py has no such text; near line 12:\n-    def fill(self):\n+    def fill(self, n):",
    ),
    CandidateTried(
        index=1,
        total=3,
        score=-1.2,
        path="inventory/stock.py",
        diff=DIFF,
        verdict="still_failing",
        detail="1 of 12 tests fails",
        duration_s=0.4,
    ),
    CandidateTried(
        index=2, total=3, score=-1.9, path="inventory/stock.py", diff=DIFF, verdict="broken", detail="", duration_s=0.1
    ),
    CandidateTried(
        index=3,
        total=3,
        score=-2.3,
        path="inventory/stock.py",
        diff=DIFF,
        verdict="fixed",
        detail="12 passed",
        duration_s=0.5,
    ),
    Notice(text="tests/test_slow.py was left out: it needs the network", level="warning"),
    Notice(text="bug.png: 1280 × 800", pictures=(PictureBlock(title="bug.png", path="b.png", width=1280, height=800),)),
    PhaseEnded(name="repair", summary="candidate 3 of 3 passes every test", duration_s=4.1),
    TurnStarted(turn=2),
    AnswerText(text=ANSWER),
    TurnEnded(turn=2, finish="stop", prompt_tokens=1420, cached_tokens=1310, completion_tokens=24, duration_s=0.8),
    MessageAdded(message=assistant(ANSWER)),
    Aside(question="what is a minimum here?", answer="The level at which an item is **ordered again**."),
    RunEnded(
        exit_code=0,
        outcome="fixed and verified",
        summary="1 failing test passes, 11 passed before and after, the failure returns when the change is undone",
        duration_s=7.4,
        report={"fixed": [FAILURE]},
    ),
)
