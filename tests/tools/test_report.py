"""The report's text: small reports stay as they are, equal errors are told once, and two runs can be compared."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from m3_tools.base import ToolContext, ToolResult
from m3_tools.known_tests import selects, unknown_ids
from m3_tools.report import MAX_IDS, TestFailure, TestReport, changed_since, report_text
from m3_tools.run_tests import RunTests, run_tests

Call = Callable[..., ToolResult]


def failure(test_id: str, message: str = "", error_type: str = "AssertionError") -> TestFailure:
    return TestFailure(
        test_id=test_id, error_type=error_type, message=message, frames=(("tests/a.py", len(test_id), "f"),)
    )


def report(failures: list[TestFailure], **outcomes: Any) -> TestReport:
    return TestReport(
        command="pytest",
        outcomes={**{f.test_id: "failed" for f in failures}, **outcomes},
        failures=tuple(failures),
        exit_code=1,
        duration_s=1,
        executed={"a.py": {"f": (1,), "g": (2,)}},
    )


def plainly(made: TestReport) -> str:
    """The text of a report with few and different errors, written out."""
    lines = [f"{len(made.failures)} failed"]
    for item in made.failures:
        lines += [f"FAILED {item.test_id}", f"tests/a.py:{len(item.test_id)} in f"]
        lines += [line for line in item.message.split("\n") if line.strip()]
    return "\n".join([*lines, "ran a.py: f, g"])


@given(messages=st.lists(st.sampled_from(["", "E: a", "E: b\n + more", "E: c"]), min_size=1, max_size=3))
def test_up_to_three_failures_with_different_errors_read_as_ever(messages: list[str]) -> None:
    different = [m for i, m in enumerate(messages) if not m or m not in messages[:i]]
    made = report([failure("t" * (n + 1), message) for n, message in enumerate(different)])
    assert report_text(made) == plainly(made)


def test_the_same_error_is_told_once_with_all_its_tests() -> None:
    same = [failure(f"c{n}", "E: x at 0x34") for n in range(3)]
    failures = [failure("a", "E: x at 0x12"), failure("b", "E: y"), *same]
    assert report_text(report(failures)) == (
        "5 failed\nFAILED a\ntests/a.py:1 in f\nE: x at 0x…\nthe same error in 3 more: c0, c1, c2\n"
        "FAILED b\ntests/a.py:1 in f\nE: y\nran a.py: f, g"
    )


def test_another_type_or_no_message_is_another_error() -> None:
    text = report_text(report([failure("a", "x"), failure("b", "x", "KeyError"), failure("c"), failure("d")]))
    assert "the same" not in text
    assert "and 1 more failures: d" in text


def test_the_rest_is_named_and_bounded() -> None:
    failures = [failure(f"t{n}", f"E: {n}") for n in range(100)]
    text = report_text(report(failures))
    ids = [f"t{n}" for n in range(3, 3 + MAX_IDS)]
    assert f"and 97 more failures: {', '.join(ids)} and {97 - MAX_IDS} more\n" in text
    same = report_text(report([failure(f"t{n}", "E: 1") for n in range(1000)]))
    assert "the same error in 999 more: t1, t2" in same
    assert len(same) < 1000


def outcomes(**values: Any) -> TestReport:
    return TestReport(command="", outcomes=values, failures=(), exit_code=0, duration_s=0)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (outcomes(a="passed"), outcomes(a="passed"), "nothing changed"),
        (outcomes(a="failed"), outcomes(a="failed"), "nothing changed"),
        (outcomes(a="failed", b="error"), outcomes(a="passed", b="passed"), "2 fixed; 0 newly failing"),
        (outcomes(a="passed"), outcomes(a="failed", n="error"), "0 fixed; 2 newly failing: a, n"),
        (outcomes(a="passed", b="passed"), outcomes(a="skipped"), "0 fixed; 0 newly failing; 2 no longer run: a, b"),
        (outcomes(a="failed"), outcomes(), "nothing changed"),
        (outcomes(a="passed"), outcomes(a="passed", n="passed"), "0 fixed; 0 newly failing; 1 new, passing: n"),
    ],
)
def test_the_change_since_the_last_run(before: TestReport, after: TestReport, said: str) -> None:
    assert changed_since(before, after) == f"since the last run: {said}"


@pytest.mark.parametrize(
    ("wanted", "test_id", "is_selected"),
    [
        ("t/a.py::f", "t/a.py::f", True), ("t/a.py::f", "t/a.py::f[1]", True), ("t/a.py", "t/a.py::C::f", True),
        ("t", "t/a.py::f", True), ("t/", "t/a.py::f", True), ("a.C", "a.C.f", True),
        ("t/a.py::f", "t/a.py::fg", False), ("t/a", "t/a.py", True), ("t/a.py::f[2]", "t/a.py::f[1]", False),
        ("t/b.py", "t/a.py::f", False),
    ],
)  # fmt: skip
def test_which_tests_an_id_stands_for(wanted: str, test_id: str, is_selected: bool) -> None:
    assert selects(wanted, test_id) == is_selected


TESTS = """\
import pytest
from shop import price

class TestPrice:
    def test_low(self): assert price(1) == 2

def test_high(): assert price(9) == 10

@pytest.mark.parametrize("n", [3, 4])
def test_many(n): assert price(n) == n + 1
"""


@pytest.fixture
def repo(context: ToolContext) -> Path:
    context.environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    (context.root / "tests").mkdir()
    (context.root / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    (context.root / "shop.py").write_text("def price(n):\n    return n\n")
    (context.root / "tests/test_price.py").write_text(TESTS)
    return context.root


T = "tests/test_price.py"


def test_two_whole_runs_are_compared_only_where_asked(call: Call, repo: Path) -> None:
    plain, comparing = RunTests(), RunTests(compare_runs=True)
    first = call(comparing).text
    assert first == call(plain).text == call(plain).text  # nothing is added unasked, or at the first run
    (repo / "shop.py").write_text("def price(n):\n    return n + 1 if n > 1 else 0\n")
    assert call(comparing, tests=[f"{T}::test_high"]).text == "1 passed"  # a part is no whole run
    text = call(comparing).text
    assert text.endswith("\nsince the last run: 3 fixed; 0 newly failing")
    (repo / "shop.py").write_text("def price(n):\n    return 2 if n < 9 else n\n")
    assert call(comparing).text.split("\n")[-1] == (
        f"since the last run: 1 fixed; 3 newly failing: {T}::test_high, {T}::test_many[3], {T}::test_many[4]"
    )
    assert "since" not in call(plain).text


UNKNOWN = {
    f"{T}::test_hihg": f"{T}::test_high",
    f"{T}::test_low": f"{T}::TestPrice::test_low",
    "test_high": f"{T}::test_high",
    "tests/test_prices.py": T,
    "test_price.py::test_high": f"{T}::test_high",
    f"{T}::TestPrice.test_low": f"{T}::TestPrice::test_low",
    f"{T}::test_many[5]": f"{T}::test_many",
}


def test_an_unknown_id_has_near_ones(context: ToolContext, repo: Path) -> None:
    for wanted, near in UNKNOWN.items():
        right = f"{T}::TestPrice::test_low"  # beside a wrong one pytest does not run it either
        for ids in ([wanted], [right, wanted]):
            found = asyncio.run(unknown_ids(context, ids, [], is_dotted=False))
            if ids[0] == wanted or not wanted.endswith("]"):
                assert list(found) == [wanted]
                assert found[wanted][0] == near
    assert asyncio.run(unknown_ids(context, [right, T, "tests", f"{T}::test_many[3]"], [], is_dotted=False)).keys() <= {
        f"{T}::test_many[3]"
    }


def test_an_unknown_id_is_answered_with_the_nearest(call: Call, repo: Path) -> None:
    result = call(RunTests(), tests=[f"{T}::TestPrice::test_low", f"{T}::test_hihg"])
    assert result.is_error
    assert result.text.startswith(f"No test was run.\nthere is no test {T}::test_hihg; nearest: {T}::test_high")


def test_known_parameters_are_named_after_a_run(call: Call, repo: Path) -> None:
    tool = RunTests()
    call(tool)
    assert f"nearest: {T}::test_many[" in call(tool, tests=[f"{T}::test_many[5]"]).text


def test_ids_that_exist_add_nothing(call: Call, repo: Path) -> None:
    (repo / "shop.py").write_text("def price(n):\n    return n + 1\n")
    for tests in (["tests"], [f"{T}::TestPrice", f"{T}::test_many[3]"]):
        assert "\n" not in call(RunTests(), tests=tests).text
    (repo / "shop.py").write_text("def price(:\n")
    assert "there is no test" not in call(RunTests(), tests=[f"{T}::test_high"]).text


def test_a_command_that_cannot_choose_blames_no_id(call: Call, repo: Path) -> None:
    assert call(RunTests(command="true"), tests=["x"]).text == "1 passed"


def test_the_ids_of_a_unittest_report_can_be_run_again(context: ToolContext) -> None:
    (context.root / "tests").mkdir()
    code = "import unittest\n\nclass A(unittest.TestCase):\n    def test_a(self): pass\n    def test_b(self): pass\n"
    (context.root / "tests/test_a.py").write_text(code)
    run = lambda ids: asyncio.run(run_tests(context.root, ids, command="python -m unittest"))  # noqa: E731
    everything = run(())
    assert list(everything.outcomes) == ["test_a.A.test_a", "test_a.A.test_b"]
    for test_id in everything.outcomes:
        assert run((test_id,)).outcomes == {test_id: "passed"}


def test_an_unknown_unittest_id_is_answered_with_the_nearest(call: Call, context: ToolContext) -> None:
    (context.root / "tests").mkdir()
    code = "import unittest\n\nclass A(unittest.TestCase):\n    def test_level(self): pass\n"
    (context.root / "tests/test_a.py").write_text(code)
    text = call(RunTests(command="python -m unittest"), tests=["test_a.A.test_lvl"]).text
    assert "there is no test test_a.A.test_lvl; nearest: test_a.A.test_level" in text
