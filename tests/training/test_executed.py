"""Executed bugs: the report is what the `test` tool prints for the damaged repository, and nothing else runs."""

from __future__ import annotations

import ast
import asyncio
import multiprocessing
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from m3_tools.run_tests import report_text, run_tests
from m3agent.fix.intake import load_issue
from m3agent.fix.prompt import issue_text
from m3agent.llm.protocol import ModelInfo
from m3agent.settings import Settings
from training.bugs import describe, repaired
from training.conversations import executed_conversation
from training.doctests import function_tests
from training.execute import executed_bugs, job_of, with_imports_on_top
from training.executed import Executed, read_executed, write_executed
from training.isolation import Outcome, Place, TestModule, run_module
from training.issues import executed_issue
from training.sources import PackageRecord
from training.transcript import NS, Encoder

P = ParamSpec("P")
R = TypeVar("R")
MODULE = '''"""Small things about numbers."""

import os


def _half(number):
    return number // 2


def middle(numbers):
    """The element in the middle.

    >>> middle([1, 2, 3])
    2
    >>> middle([1])
    1
    """
    at = _half(len(numbers))
    return numbers[at]


class Counter:
    def __init__(self):
        self.seen = 0

    def add(self, *, times=1):
        """Counts.

        >>> c = Counter()
        >>> c.add(times=2)
        2
        """
        self.seen += times
        return self.seen


def steps(limit):
    """Counts up to a limit.

    >>> steps(3)
    [0, 1, 2]
    """
    found = []
    while len(found) < limit:
        found.append(len(found))
    return found
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    root = (tmp_path / "copy").resolve()
    (root / "smallnumbers").mkdir(parents=True)
    (root / "smallnumbers/__init__.py").write_text("")
    (root / "smallnumbers/core.py").write_text(MODULE)
    return root


def in_a_process(function: Callable[P, R], *arguments: P.args, **options: P.kwargs) -> R:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments, options)


def run(module: TestModule) -> list[Outcome]:
    return run_module(module, other_tests=0, seed=1)


def damaged(old: str, new: str, name: str) -> TestModule:
    tests = {t.qualname: t for t in function_tests(MODULE, "smallnumbers.core")}
    test = tests[name]
    source = "\n".join(MODULE.split("\n")[test.first : test.last + 1])
    bug = describe(source, source.replace(old, new), "variable")
    assert bug is not None
    place = Place(name, test.test_name, source, test.first + 1, (bug,))
    return TestModule(Path(), "smallnumbers/core.py", "\n\n".join(t.source for t in tests.values()) + "\n", (place,))


def test_an_issue_reaches_the_model_as_it_was_trained(tmp_path: Path) -> None:
    rng = random.Random(4)
    examples = (("middle([1, 2, 3])", "2"), ("middle('abc')", "'b'"))
    for number in range(60):
        error = rng.choice(["", "TypeError", "AssertionError"])
        text = executed_issue(
            rng, "Numbers.middle", "smallnumbers/core.py", examples, error, f"{error}: bad" * bool(error)
        )
        file = tmp_path / f"{number}.md"
        file.write_text(f"# {text}\n", encoding="utf-8")
        issue = load_issue(str(file), tmp_path, Settings(state_dir=tmp_path))
        assert issue_text(issue, ModelInfo(name="nano", context_tokens=2048, is_nano=True)) == text


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("middle", "return numbers[at]", "return numbers[at - 1]"),
        ("middle", "_half(len(numbers))", "_half(numbers)"),
        ("Counter.add", "self.seen += times", "seen += times"),
    ],
)
def test_the_report_is_that_of_the_test_tool_on_the_damaged_repository(
    package: Path, tmp_path: Path, name: str, old: str, new: str
) -> None:
    module = damaged(old, new, name)
    found = in_a_process(run, TestModule(package, module.path, module.tests, module.places))
    repo = tmp_path / "repo"
    (repo / "smallnumbers").mkdir(parents=True)
    (repo / "tests").mkdir()
    (repo / "smallnumbers/__init__.py").write_text("")
    (repo / "smallnumbers/core.py").write_text(MODULE.replace(old, new))
    (repo / "tests/test_core.py").write_text(module.tests)
    (repo / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\ntestpaths = ["tests"]\n')
    test = f"tests/test_core.py::{module.places[0].test_name}"
    expected = asyncio.run(run_tests(repo, [test], trace=True, load_plugins=False))
    assert [o.report for o in found] == [report_text(expected)]
    assert "1 failed" in found[0].report


def test_imports_on_top_leave_tests_that_parse_and_lack_nothing() -> None:
    tests = "\n\n".join(t.source for t in function_tests(MODULE, "smallnumbers.core")) + "\n"
    text = with_imports_on_top(tests, "smallnumbers.core")
    ast.parse(text)
    assert text.startswith("from smallnumbers.core import Counter, middle, steps\n")
    assert text.count("import") == 1


def test_a_bug_that_no_test_notices_is_dropped(package: Path) -> None:
    module = damaged("found = []", "found = list()", "steps")
    assert in_a_process(run, TestModule(package, module.path, module.tests, module.places)) == []


def test_a_hanging_test_is_ended_and_told_as_such(package: Path) -> None:
    module = damaged("found.append(len(found))", "pass", "steps")
    (found,) = in_a_process(run, TestModule(package, module.path, module.tests, module.places))
    assert found.error == "Timeout"
    assert "stopped at the deadline after 60 s" in found.report


def test_a_bug_cannot_write_files_or_start_programs(package: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    for effect in (f"os.remove({str(victim)!r})", f"open({str(victim)!r}, 'w')", f"os.system('rm {victim}')"):
        module = damaged("return numbers[at]", f"return {effect}", "middle")
        (found,) = in_a_process(run, TestModule(package, module.path, module.tests, module.places))
        assert found.error == "PermissionError"
        assert victim.read_text() == "kept"


def test_every_executed_bug_fails_a_test_is_undone_and_makes_a_conversation(package: Path, tmp_path: Path) -> None:
    found: list[Executed] = in_a_process(executed_bugs, job_of(package, "smallnumbers", "smallnumbers/core.py", seed=3))
    assert len(found) >= 5
    encoder, rng = Encoder(), random.Random(1)
    for executed in found:
        assert " failed" in executed.report.split("\n")[0]
        assert repaired(executed.bug.source, executed.bug.repair) == executed.source
        text = encoder.decode(executed_conversation(encoder, rng, executed).tokens.tolist())
        assert f"<response>{executed.report}</response>" in text
        assert f"<response>{executed.total} passed</response>" in text
        label = f"L{executed.first_line + executed.bug.repair.line - 1}|"
        assert f"{NS}<line>{label}{NS}</line>" in text
    record = PackageRecord(package="smallnumbers", version="1", licence="MIT", origin="installed")
    write_executed([record], found, tmp_path / "executed.json.xz")
    records, again = read_executed(tmp_path / "executed.json.xz")
    assert records == [record]
    assert sorted(map(repr, again)) == sorted(map(repr, found))


def test_the_trainer_needs_neither_pytest_nor_the_tools() -> None:
    code = "import sys, training.feed; print(sorted({'pytest', 'pydantic', 'm3_tools'} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert ran.stdout == "[]\n", ran.stderr
