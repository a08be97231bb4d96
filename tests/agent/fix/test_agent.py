"""`fix` with the agent strategy: a model that works freely, and a proof that it cannot influence."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m3agent.events import MessageAdded, Notice
from m3agent.exits import Exit
from m3agent.llm.scripted import ScriptedModel
from m3agent.messages import Message, ToolCall, assistant

Run = Callable[..., Any]


def call(name: str, number: int = 1, **arguments: Any) -> Message:
    return assistant(calls=(ToolCall(id=f"{name}-{number}", name=name, arguments=arguments),))


def edit(old: str, new: str, path: str = "shop/stock.py") -> Message:
    return call("edit", path=path, old=old, new=new)


READ = call("read", path="shop/stock.py")
RIGHT = edit("level < limit", "level <= limit")


def test_a_free_run_is_proven_by_the_program(shop: Path, fix: Run) -> None:
    model = ScriptedModel([READ, RIGHT, call("test"), assistant("The limit itself belongs to the list.")])
    result = asyncio.run(fix(shop, model))
    assert result.code == Exit.OK, result.summary
    assert result.report["strategy"] == "agent"
    assert result.report["tests"]["undone"]["failed"] == 2
    first = [event.message for event in result.events.events if isinstance(event, MessageAdded)][1].text
    assert "grants nothing" in first
    assert "These must pass afterwards:\n- " in first
    assert "they need not pass" not in first
    assert "test_at_the_limit" in first


def test_a_change_that_is_not_enough_comes_back_with_the_reason(shop: Path, fix: Run) -> None:
    wrong = edit("level < limit", "level == limit")
    then = edit("level == limit", "level <= limit")
    model = ScriptedModel([READ, wrong, assistant("Done."), READ, then, assistant("Now.")])
    result = asyncio.run(fix(shop, model))
    assert result.code == Exit.OK, result.summary
    told = [event.text for event in result.events.events if isinstance(event, Notice)]
    assert any("not proven" in text and "test_below" in text for text in told)


def test_a_claim_without_a_repair_is_not_believed(shop: Path, fix: Run) -> None:
    wrong = edit("level < limit", "level == limit")
    model = ScriptedModel([READ, wrong, *[assistant("It is fixed.")] * 3])
    result = asyncio.run(fix(shop, model))
    assert (result.code, result.outcome) == (Exit.NOT_FIXED, "not_fixed")
    assert "do not pass after the change" in result.summary


def test_a_weakened_test_does_not_count_and_is_flagged(shop: Path, fix: Run) -> None:
    test = "tests/test_stock.py"
    weaker = [
        call("read", 2, path=test),
        edit("self.assertTrue(needs_reorder(5, 5))", "pass", test),
        edit('self.assertEqual(order({"a": 5, "b": 9}, 5), ["a"])', "pass", test),
    ]
    result = asyncio.run(fix(shop, ScriptedModel([*weaker, *[assistant("All tests pass.")] * 3])))
    assert result.code == Exit.NOT_FIXED
    assert f"touches {test} and removes assertions" in result.report["flags"][0]


def test_a_change_of_tests_beside_a_repair_is_flagged_first(shop: Path, fix: Run) -> None:
    test = "tests/test_stock.py"
    both = [READ, RIGHT, call("read", 2, path=test), edit("import unittest", "import unittest  # ours", test)]
    result = asyncio.run(fix(shop, ScriptedModel([*both, assistant("Done.")])))
    assert result.code == Exit.OK, result.summary
    assert result.report["flags"] == [f"the change touches {test}; the proof was made with the file as it was"]
    assert result.summary.splitlines()[1].startswith("Warning: the change touches")


TEST = "tests/test_stock.py"
PASSING = "self.assertTrue(needs_reorder(3, 5))"


@pytest.mark.parametrize(
    ("spoiler", "named"),
    [
        ([call("read", 2, path=TEST), edit(PASSING, "self.assertFalse(needs_reorder(3, 5))", TEST)], "test_below"),
        ([call("write", path="tests/test_new.py", content="import unittest\n\nassert False\n")], "test_new"),
        ([call("read", 2, path=TEST), edit("import unittest", "import unittest, nowhere", TEST)], "test_stock"),
    ],
    ids=["edited so that it fails", "a new one that fails", "an import that fails"],
)
def test_a_repair_that_hands_over_failing_tests_is_refused(
    shop: Path, fix: Run, spoiler: list[Message], named: str
) -> None:
    result = asyncio.run(fix(shop, ScriptedModel([READ, RIGHT, *spoiler, *[assistant("Done.")] * 3])))
    assert (result.code, result.report["proven"]) == (Exit.NOT_FIXED, False)
    assert "the repair holds, but" in result.summary
    assert named in result.summary
    assert "that passed" not in result.summary


def test_a_repair_with_a_new_test_that_passes_is_accepted(shop: Path, fix: Run) -> None:
    content = "import unittest\n\n\nclass NewTest(unittest.TestCase):\n    def test_new(self):\n        pass\n"
    new = call("write", path="tests/test_new.py", content=content)
    result = asyncio.run(fix(shop, ScriptedModel([READ, RIGHT, new, assistant("Done.")])))
    assert result.code == Exit.OK, result.summary
    assert result.report["flags"] == []
    before, delivered = result.report["tests"]["before"], result.report["tests"]["delivered"]
    assert delivered["passed"] == before["passed"] + before["failed"] + 1


WITHOUT_TESTS = "def needs_reorder(level, limit):\n    return level < limit\n"
PROVING = (
    "import unittest\n\nfrom shop.stock import needs_reorder\n\n\nclass LimitTest(unittest.TestCase):\n"
    "    def test_limit(self):\n        self.assertTrue(needs_reorder({level}, 5))\n"
)


@pytest.mark.parametrize(
    ("level", "code", "words"),
    [
        (5, Exit.OK, "tests of the change that fail without it and pass with it: 1"),
        pytest.param(4, Exit.NOT_FIXED, "no test fails without the change and passes with it", marks=pytest.mark.slow),
        (None, Exit.UNVERIFIED, "no tests exist that could verify it"),
    ],
    ids=["a test that shows it", "a test that shows nothing", "none"],
)
def test_where_there_is_no_test_at_all_one_of_the_change_can_prove_it(
    shop: Path, fix: Run, commit: Any, level: int | None, code: Exit, words: str
) -> None:
    """A test was written, and did not count: nothing had run before it."""
    shutil.rmtree(shop / "tests")
    (shop / "shop/stock.py").write_text(WITHOUT_TESTS)
    commit(shop)
    new = [] if level is None else [call("write", path="test_stock.py", content=PROVING.format(level=level))]
    model = ScriptedModel([READ, RIGHT, *new, *[assistant("Done.")] * 3])
    result = asyncio.run(fix(shop, model, strategy="agent"))
    assert result.code == code, result.summary
    assert words in result.summary
    assert "No tests were found: nothing proves a change" in model.asked[0].messages[1].text


def test_a_new_test_that_passes_by_chance_is_refused(shop: Path, fix: Run) -> None:
    """The repair held and had been shown; a test of the change that failed in the next run was handed over with it."""
    content = (
        "import pathlib, unittest\n\n\nclass ChanceTest(unittest.TestCase):\n    def test_chance(self):\n"
        "        runs = pathlib.Path(__file__).with_name('runs')\n"
        "        runs.write_text(runs.read_text() + 'x' if runs.exists() else 'x')\n"
        "        self.assertTrue(len(runs.read_text()) % 3)\n"
    )
    new = call("write", path="tests/test_chance.py", content=content)
    result = asyncio.run(fix(shop, ScriptedModel([READ, RIGHT, new, *[assistant("Done.")] * 3]), max_steps=4))
    assert result.code != Exit.OK
    assert result.report["reason"] == "the tests that the change adds or edits do not pass every time"
    assert result.report["files"] == ["shop/stock.py", "tests/test_chance.py"]  # and not what its runs left


def test_new_settings_of_tests_prove_nothing(shop: Path, fix: Run) -> None:
    patched = "import shop.stock\n\nshop.stock.needs_reorder = lambda level, limit: level <= limit\n"
    cheat = [call("write", path="tests/conftest.py", content=patched)]
    result = asyncio.run(fix(shop, ScriptedModel([*cheat, *[assistant("Done.")] * 3])))
    assert result.code == Exit.NOT_FIXED
    assert "adds tests/conftest.py" in result.report["flags"][0]


def test_a_change_that_passes_by_chance_is_not_proven(shop: Path, fix: Run) -> None:
    by_chance = edit("level < limit", "level < limit or {'a', 'b'}.__iter__().__next__() == 'a'")
    result = asyncio.run(fix(shop, ScriptedModel([READ, by_chance, *[assistant("Done.")] * 3])))
    assert result.code == Exit.NOT_FIXED
    assert result.report["proven"] is False


STOCK_WITHOUT_THE_TESTS = """\
import unittest

from shop.stock import needs_reorder


class StockTest(unittest.TestCase):
    def test_below(self):
        self.assertTrue(needs_reorder(3, 5))
"""
AT_THE_LIMIT = """

    def test_at_the_limit(self):
        self.assertTrue(needs_reorder(5, 5))
"""


@pytest.fixture
def silent_shop(shop: Path, commit: Any) -> Path:
    """The bug is there and no test shows it."""
    (shop / TEST).write_text(STOCK_WITHOUT_THE_TESTS)
    commit(shop)
    return shop


def add_test(text: str, number: int = 3) -> list[Message]:
    line = "self.assertTrue(needs_reorder(3, 5))"
    return [call("read", number, path=TEST), edit(f"        {line}\n", f"        {line}\n{text}", TEST)]


def test_where_no_test_shows_the_problem_the_change_must_bring_one(silent_shop: Path, fix: Run) -> None:
    turns = [*add_test(AT_THE_LIMIT), call("test"), READ, RIGHT, call("test", 2), assistant("Done.")]
    result = asyncio.run(fix(silent_shop, ScriptedModel(turns), strategy="agent"))
    assert result.code == Exit.OK, result.summary
    first = [event.message for event in result.events.events if isinstance(event, MessageAdded)][1].text
    assert "No failing test shows the problem" in first
    assert "These must pass afterwards" not in first
    assert [i.rpartition(".")[2] for i in result.report["tests"]["shown"]] == ["test_at_the_limit"]
    assert "the proof rests on tests that the change brings" in result.report["flags"][0]
    assert not any("as it was" in flag for flag in result.report["flags"])
    assert result.summary.startswith("fixed: tests of the change that fail without it and pass with it: 1;")


def test_a_failure_that_the_issue_does_not_point_to_may_be_left(shop: Path, fix: Run, commit: Any) -> None:
    """All that failed had to pass, whatever it was: an issue beside a test that fails anyway could not be repaired."""
    (shop / TEST).write_text(STOCK_WITHOUT_THE_TESTS)
    (shop / "tests/test_other.py").write_text(
        "import unittest\n\n\nclass OtherTest(unittest.TestCase):\n"
        "    def test_weather(self):\n        self.assertEqual('rain', 'sun')\n"
    )
    commit(shop)
    turns = [READ, RIGHT, assistant("Done."), *add_test(AT_THE_LIMIT), assistant("test_weather is another thing.")]
    result = asyncio.run(fix(shop, ScriptedModel(turns), strategy="agent"))
    told = [event.message.text for event in result.events.events if isinstance(event, MessageAdded)]
    assert "unless they fail for a reason that the issue does not mean" in told[1]
    assert any("leave them, and add a test that shows the problem" in text for text in told)
    assert result.code == Exit.OK, result.summary
    assert "test_weather" in result.report["flags"][1]
    assert "still fail" in result.report["flags"][1]
    assert "test_at_the_limit" in str(result.report["tests"]["shown"])


def test_a_failure_that_the_issue_points_to_may_not_be_left(shop: Path, fix: Run) -> None:
    turns = [
        *add_test("\n    def test_name(self):\n        from shop import stock\n\n        self.assertTrue(stock.NAME)\n")
    ]
    named = [READ, edit("def needs_reorder", "NAME = 'stock'\n\n\ndef needs_reorder")]
    result = asyncio.run(fix(shop, ScriptedModel([*turns, *named, *[assistant("Done.")] * 3])))
    assert result.code == Exit.NOT_FIXED
    assert "2 of 2 failing tests still fail" in result.summary


PASSES_ANYWAY = "\n    def test_far_below(self):\n        self.assertTrue(needs_reorder(0, 5))\n"
FAILS_ON_AN_IMPORT = (
    "\n    def test_new(self):\n        from shop.orders import limit\n\n        self.assertEqual(limit(), 5)\n"
)
NEW_MODULE = call("write", path="shop/orders.py", content="def limit():\n    return 5\n")


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ([READ, RIGHT], "nothing shows the problem"),
        ([READ, RIGHT, *add_test(PASSES_ANYWAY)], "nothing shows the problem"),
        (add_test(PASSES_ANYWAY), "only test code was changed"),
        ([NEW_MODULE, *add_test(FAILS_ON_AN_IMPORT)], "fails on an import"),
        (add_test(AT_THE_LIMIT), "tests that the change adds or edits fail"),
    ],
    ids=["no test", "one that passes anyway", "a test alone", "one that fails on an import", "one without a repair"],
)
def test_a_test_that_does_not_show_the_problem_proves_nothing(
    silent_shop: Path, fix: Run, turns: list[Message], reason: str
) -> None:
    result = asyncio.run(fix(silent_shop, ScriptedModel([*turns, *[assistant("Done.")] * 3]), strategy="agent"))
    assert (result.code, result.report["proven"]) == (Exit.NOT_FIXED, False)
    assert reason in result.report["reason"]


def test_a_problem_that_is_not_there_is_not_reproduced(silent_shop: Path, fix: Run) -> None:
    answer = "With 5 left I get True.\n\nI tried " + "many things, " * 40 + "and the last."
    result = asyncio.run(fix(silent_shop, ScriptedModel([READ, assistant(answer)]), strategy="agent"))
    assert (result.code, result.outcome) == (Exit.NOT_REPRODUCED, "not_reproduced")
    assert "and the last." in result.summary  # the person gets all of what the model says


def test_an_added_test_beside_a_failing_one_is_tried_without_the_repair(shop: Path, fix: Run) -> None:
    far = "\n    def test_one_above(self):\n        self.assertTrue(needs_reorder(5, 5))\n"
    result = asyncio.run(fix(shop, ScriptedModel([READ, RIGHT, *add_test(far), assistant("Done.")])))
    assert result.code == Exit.OK, result.summary
    assert "test_one_above" in str(result.report["tests"]["shown"])
    assert "without the change fail" in result.summary


def test_what_is_flaky_is_not_counted_as_repaired(shop: Path, fix: Run, commit: Any) -> None:
    """It failed in the first run, passed in the second, and was told as one of the tests that were repaired."""
    (shop / "tests/test_chance.py").write_text(
        "import pathlib, unittest\n\n\nclass ChanceTest(unittest.TestCase):\n    def test_chance(self):\n"
        "        marker = pathlib.Path(__file__).parent / 'ran-before'\n"
        "        ran = marker.exists()\n        marker.touch()\n        self.assertTrue(ran)\n"
    )
    commit(shop)
    result = asyncio.run(fix(shop, ScriptedModel([READ, RIGHT, assistant("Done.")])))
    assert result.code == Exit.OK, result.summary
    assert len(result.report["tests"]["flaky"]) == 1
    assert result.summary.startswith("fixed: failing tests that pass now: 2;")


def test_no_change_is_no_fix(shop: Path, fix: Run) -> None:
    result = asyncio.run(fix(shop, ScriptedModel([assistant("This cannot be done.")])))
    assert result.code == Exit.NOT_FIXED
    assert "This cannot be done." in result.summary


def test_what_needs_an_approval_ends_with_its_own_code(shop: Path, fix: Run) -> None:
    model = ScriptedModel([call("shell", command="ls"), assistant("I need the shell.")])
    result = asyncio.run(fix(shop, model))
    assert (result.code, result.outcome) == (Exit.NEEDS_APPROVAL, "needs_approval")


def test_failures_that_the_issue_does_not_mean_are_named_as_such(shop: Path, fix: Run, commit: Any) -> None:
    (shop / "tests/test_other.py").write_text(
        "import unittest\n\nclass OtherTest(unittest.TestCase):\n"
        "    def test_weather(self):\n        self.assertEqual('rain', 'sun')\n"
    )
    commit(shop)
    result = asyncio.run(fix(shop, ScriptedModel([READ, RIGHT, assistant("Done.")])))
    first = [event.message for event in result.events.events if isinstance(event, MessageAdded)][1].text
    must, _, others = first.partition("The issue does not point to these failures; they need not pass:")
    assert "test_at_the_limit" in must.partition("These must pass afterwards:")[2]
    assert "test_weather" in others
    assert result.code == Exit.OK, result.summary


def test_a_limit_ends_the_run_with_its_own_code_and_the_change_is_reported(shop: Path, fix: Run) -> None:
    wrong = edit("level < limit", "level == limit")
    result = asyncio.run(fix(shop, ScriptedModel([READ, wrong, READ, READ]), max_steps=2))
    assert (result.code, result.outcome) == (Exit.BUDGET, "budget")
    assert "+    return level == limit" in result.report["diff"]
    assert result.report["proven"] is False


def test_without_tests_the_change_is_kept_as_a_patch_and_called_unverified(shop: Path, fix: Run, commit: Any) -> None:
    shutil.rmtree(shop / "tests")
    commit(shop)
    model = ScriptedModel([READ, RIGHT, assistant("Done.")])
    result = asyncio.run(fix(shop, model, test_command="", strategy="agent"))
    assert (result.code, result.outcome) == (Exit.UNVERIFIED, "unverified")
    assert "+    return level <= limit" in Path(result.report["delivery"]["patch"]).read_text()
