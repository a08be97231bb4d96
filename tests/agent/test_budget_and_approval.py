from __future__ import annotations

import pytest

from m3_tools.toolset import all_tools
from m3agent.approval import Mode, Verdict, decide
from m3agent.budget import Budget
from m3agent.llm.protocol import Usage

TOOLS = {tool.name: tool for tool in all_tools()}


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_limit_is_reached_by_itself_and_says_how_to_raise_it() -> None:
    clock = Clock()
    assert Budget().reached() is None
    steps = Budget(max_steps=1)
    steps.spend(Usage(completion_tokens=4))
    assert "--max-steps" in (steps.reached() or "")
    tokens = Budget(max_tokens=4)
    tokens.spend(Usage(prompt_tokens=1000, completion_tokens=3))
    assert tokens.reached() is None
    tokens.spend(Usage(completion_tokens=1))
    assert "4 written tokens" in (tokens.reached() or "")
    seconds = Budget(time_limit_s=5, clock=clock)
    clock.now += 4
    assert (seconds.reached(), seconds.remaining_s) == (None, 1)
    clock.now += 2
    assert "--time-limit" in (seconds.reached() or "")
    assert seconds.remaining_s == 0


def test_spending_adds_up() -> None:
    budget = Budget()
    for _ in range(3):
        budget.spend(Usage(prompt_tokens=10, cached_tokens=8, completion_tokens=2))
    assert (budget.steps, budget.usage) == (3, Usage(prompt_tokens=30, cached_tokens=24, completion_tokens=6))


@pytest.mark.parametrize(
    ("mode", "free", "asked", "refused"),
    [
        ("plan", {"read", "grep", "glob", "outline", "todo"}, set(), {"edit", "edit_line", "write", "shell"}),
        ("ask", {"read", "grep", "glob", "outline", "todo"}, {"edit", "edit_line", "write", "shell"}, set()),
        ("edit", {"read", "grep", "edit", "edit_line", "write", "test", "todo"}, {"shell"}, set()),
        ("auto", set(TOOLS), set(), set()),
    ],
)
def test_a_mode_is_held_by_the_loop_and_not_by_the_prompt(
    mode: Mode, free: set[str], asked: set[str], refused: set[str]
) -> None:
    expected: dict[str, Verdict] = dict.fromkeys(free, "allow")
    expected |= dict.fromkeys(asked, "ask") | dict.fromkeys(refused, "refuse")
    assert {name: decide(mode, TOOLS[name]).verdict for name in expected} == expected


def test_only_tools_that_say_so_are_read_only() -> None:
    assert {name for name, tool in TOOLS.items() if tool.read_only} >= {"read", "grep", "glob", "outline"}
    assert not any(TOOLS[name].read_only for name in ("edit", "edit_line", "write", "shell"))
