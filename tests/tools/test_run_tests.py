"""Test runs of small repositories: exact outcomes whatever the repository configures, and a clean work tree after
them.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from m3_tools import base
from m3_tools.base import ToolContext, ToolError, ToolResult
from m3_tools.run_tests import RunTests, TestReport, compare, find_runner, report_text, run_tests

STOCK = """\
class Stock:
    def __init__(self):
        self.items = {}

    def add(self, name, count):
        self.items[name] = self.items.get(name, 0) + count

    def level(self, name):
        return sum(count for count in [self.items.get(name, 0)])


def reorder_quantity(stock, name, target):
    missing = target - stock.level(name)
    return _positive(missing)


def _positive(number):
    if number < 0:
        return 0
    return number - 1


def unused():
    return 1
"""
TESTS = """\
import pytest
from shop.stock import Stock, reorder_quantity


@pytest.fixture
def stock():
    result = Stock()
    result.add("nail", 2)
    return result


def test_level(stock):
    assert stock.level("nail") == 2


def test_enough(stock):
    assert reorder_quantity(stock, "nail", 1) == 0


def test_reorder(stock):
    assert reorder_quantity(stock, "nail", 10) == 8


@pytest.mark.parametrize("count", [1, 2])
def test_many(stock, count):
    stock.add("nail", count)
    assert stock.level("nail") == 2 + count


class TestMarks:
    @pytest.mark.skip
    def test_skipped(self): ...

    @pytest.mark.xfail
    def test_expected(self):
        assert False

    @pytest.mark.xfail
    def test_surprise(self): ...

    @pytest.mark.xfail(strict=True)
    def test_strict(self): ...


@pytest.fixture
def broken():
    raise ValueError("no fixture")


@pytest.fixture
def bad_end():
    yield
    raise ValueError("no end")


def test_setup(broken): ...


def test_teardown(bad_end): ...
"""
T = "tests/test_stock.py::"
OUTCOMES = {
    T + "test_level": "passed",
    T + "test_enough": "passed",
    T + "test_reorder": "failed",
    T + "test_many[1]": "passed",
    T + "test_many[2]": "passed",
    T + "TestMarks::test_skipped": "skipped",
    T + "TestMarks::test_expected": "xfailed",
    T + "TestMarks::test_surprise": "xpassed",
    T + "TestMarks::test_strict": "failed",
    T + "test_setup": "error",
    T + "test_teardown": "error",
}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    write(tmp_path / "repo", {"shop/__init__.py": "", "shop/stock.py": STOCK, "tests/test_stock.py": TESTS})
    return tmp_path / "repo"


def run(root: Path, ids: tuple[str, ...] = (), **options: Any) -> TestReport:
    before = snapshot(root)
    report = asyncio.run(run_tests(root, ids, **{"load_plugins": False, **options}))
    assert snapshot(root) == before  # no cache, no bytecode, no coverage file
    return report


def snapshot(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() if p.is_file() else b"" for p in root.rglob("*")}


def test_every_outcome_is_told_apart(repo: Path) -> None:
    report = run(repo)
    assert report.outcomes == OUTCOMES
    counts = report.counts
    assert (counts.passed, counts.failed, counts.errors, counts.skipped) == (4, 2, 2, 1)
    assert (counts.xfailed, counts.xpassed, counts.total) == (1, 1, 11)
    assert (report.exit_code, report.could_start, report.timed_out, report.passed) == (1, True, False, False)
    assert report.command == "python -m pytest"
    failure = next(f for f in report.failures if f.test_id == T + "test_reorder")
    assert failure.error_type == "AssertionError"
    assert failure.message.startswith("AssertionError: assert 7 == 8")
    assert failure.frames == (("tests/test_stock.py", 21, "test_reorder"),)
    assert report.durations[T + "test_level"] < 1


def test_the_order_of_the_fast_and_the_ordinary_run_is_the_same(repo: Path) -> None:
    assert list(run(repo, load_plugins=True).outcomes.items()) == list(run(repo).outcomes.items())


CONFIGURATIONS = {
    "stop at the first": "[pytest]\naddopts = -x\n",
    "maxfail": "[pytest]\naddopts = --maxfail=1 -q -q\n",
    "stepwise": "[pytest]\naddopts = --sw\n",
    "last failed": "[pytest]\naddopts = --lf --ff\n",
    "no traceback": "[pytest]\naddopts = --tb=no --no-header -p no:terminal\n",
    "no cache": "[pytest]\naddopts = -p no:cacheprovider\n",
    "strict, warnings are errors": "[pytest]\naddopts = --strict-markers --strict-config\nfilterwarnings = error\n",
    "importlib": "[pytest]\naddopts = --import-mode=importlib\npythonpath = .\n",
    "a cache folder of its own": "[pytest]\ncache_dir = here\n",
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_the_repositorys_options_do_not_change_the_outcomes(repo: Path, name: str) -> None:
    write(repo, {"pytest.ini": CONFIGURATIONS[name]})
    assert run(repo, trace=True).outcomes == OUTCOMES


def test_a_conftest_of_the_repository_counts(repo: Path) -> None:
    write(repo, {"conftest.py": "def pytest_collection_modifyitems(items):\n    items[:] = items[:2]\n"})
    assert list(run(repo).outcomes) == [T + "test_level", T + "test_enough"]


def test_chosen_tests_run_alone(repo: Path) -> None:
    ids = (T + "test_many[2]", T + "TestMarks::test_skipped")
    assert dict(run(repo, ids).outcomes) == {i: OUTCOMES[i] for i in ids}


@pytest.mark.parametrize("last", ["test_reorder", "test_setup", "test_teardown"])
def test_a_run_can_end_at_its_first_failure(repo: Path, last: str) -> None:
    chosen = [T + "test_level", T + last, T + "test_many[2]"]
    assert list(run(repo, tuple(chosen), stop_at_failure=True).outcomes) == chosen[:2]
    inside = f"{sys.executable} -m pytest -p no:cacheprovider tests && true"
    assert list(run(repo, command=inside, stop_at_failure=True, environment=dict(os.environ)).outcomes)[-1] == (
        T + "test_reorder"
    )


def test_more_ids_than_a_command_line_holds(repo: Path) -> None:
    assert list(run(repo, tuple(f"{T}test_many[{i}]" for i in range(300))).outcomes) == [
        T + "test_many[1]",
        T + "test_many[2]",
    ]


@pytest.mark.parametrize(
    "command", ["pytest tests", "python -m pytest -q tests -k 'level or many'", "pytest --co; pytest tests"]
)
def test_chosen_tests_run_alone_whatever_the_command_names(repo: Path, command: str) -> None:
    write(repo, {"setup.cfg": "[tool:pytest]\naddopts = -p no:cacheprovider\n"})
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(repo)}
    report = run(repo, (T + "test_level", T + "TestMarks"), command=command, environment=environment, load_plugins=True)
    assert set(report.outcomes) <= {T + "test_level", *(i for i in OUTCOMES if "TestMarks" in i)}
    assert report.outcomes[T + "test_level"] == "passed"


def test_an_id_that_is_an_option_is_refused(repo: Path) -> None:
    with pytest.raises(ToolError, match="not a test id"):
        run(repo, ("--basetemp=/",))


def test_the_trace_names_what_failing_tests_ran_most_specific_first(repo: Path) -> None:
    report = run(repo, (T + "test_reorder", T + "test_enough", T + "test_level"), trace=True)
    functions = report.executed["shop/stock.py"]
    assert list(report.executed) == ["shop/stock.py"]
    assert list(functions)[:2] == ["reorder_quantity", "_positive"]
    assert set(functions) == {"reorder_quantity", "_positive", "Stock.__init__", "Stock.add", "Stock.level"}
    assert functions["_positive"] == (18, 20)
    assert report.scores["shop/stock.py"]["_positive"] > report.scores["shop/stock.py"]["Stock.level"]


def test_the_report_for_the_model(repo: Path) -> None:
    text = report_text(run(repo, (T + "test_reorder", T + "test_level"), trace=True))
    assert text.splitlines() == [
        "1 passed, 1 failed",
        "FAILED tests/test_stock.py::test_reorder",
        "tests/test_stock.py:21 in test_reorder",
        "AssertionError: assert 7 == 8",
        " +  where 7 = reorder_quantity(<shop.stock.Stock object at 0x…>, 'nail', 10)",
        "ran shop/stock.py: reorder_quantity, _positive, Stock.__init__, Stock.add, Stock.level",
    ]


def test_frames_lead_to_the_line_that_raised(repo: Path) -> None:
    write(repo, {"shop/stock.py": STOCK.replace("self.items.get(name, 0)])", "self.items[name]])")})
    write(repo, {"tests/test_key.py": "from shop.stock import Stock\n\ndef test_key():\n    Stock().level('x')\n"})
    (failure,) = run(repo, ("tests/test_key.py",)).failures
    assert failure.frames[0] == ("tests/test_key.py", 4, "test_key")
    assert failure.frames[-1] == ("shop/stock.py", 9, "Stock.level")
    assert failure.message == "KeyError: 'x'"


def test_a_hanging_test_is_named_with_the_line_where_it_hangs(repo: Path) -> None:
    write(repo, {"shop/loop.py": "def spin():\n    n = 0\n    while True:\n        n += 1\n"})
    write(
        repo, {"tests/test_a.py": "from shop.loop import spin\n\ndef test_ok(): ...\n\ndef test_spin():\n    spin()\n"}
    )
    started = time.monotonic()
    report = run(repo, ("tests/test_a.py",), timeout_s=1.5, trace=True)
    assert time.monotonic() - started < 4.5
    assert report.timed_out
    assert report.could_start
    assert not report.passed
    assert report.outcomes == {"tests/test_a.py::test_ok": "passed", "tests/test_a.py::test_spin": "failed"}
    (failure,) = report.failures
    assert failure.error_type == "Timeout"
    assert [f[0::2] for f in failure.frames] == [("tests/test_a.py", "test_spin"), ("shop/loop.py", "spin")]
    assert list(report.executed["shop/loop.py"]) == ["spin"]
    assert "stopped at the deadline" in report_text(report)


def test_an_import_that_hangs_is_located(repo: Path) -> None:
    write(repo, {"shop/loop.py": "while True:\n    pass\n", "tests/test_a.py": "import shop.loop\n"})
    report = run(repo, ("tests/test_a.py",), timeout_s=1.5)
    assert report.timed_out
    assert report.outcomes == {".": "error"}
    assert report.collection_errors[0].frames[-1][0] == "shop/loop.py"


def test_a_test_that_kills_the_process_is_named(repo: Path) -> None:
    write(repo, {"tests/test_a.py": "import os\n\ndef test_ok(): ...\n\ndef test_die():\n    os._exit(9)\n"})
    report = run(repo, ("tests/test_a.py",))
    assert report.outcomes["tests/test_a.py::test_die"] == "failed"
    assert report.failures[0].error_type == "Crash"
    assert not report.passed


def test_a_file_that_cannot_be_imported_does_not_hide_the_others(repo: Path) -> None:
    write(repo, {"tests/test_bad.py": "import shop.none\n\ndef test_x(): ...\n"})
    report = run(repo)
    assert report.could_start
    assert report.outcomes == {**OUTCOMES, "tests/test_bad.py": "error"}
    (error,) = report.collection_errors
    assert error.error_type == "ModuleNotFoundError"
    assert error.frames == (("tests/test_bad.py", 1, "<module>"),)
    assert (
        "ERROR tests/test_bad.py\ntests/test_bad.py:1 in <module>\nModuleNotFoundError: No module named 'shop.none'"
        in report_text(report)
    )


def test_a_broken_import_below_chosen_tests_is_an_error_not_a_missing_test(repo: Path) -> None:
    write(repo, {"shop/stock.py": "def broken(:\n"})
    report = run(repo, (T + "test_level",))
    assert report.outcomes == {"tests/test_stock.py": "error"}
    assert "SyntaxError" in report.failures[0].message
    assert compare(TestReport(command="", outcomes=OUTCOMES, failures=(), exit_code=1, duration_s=0), report).missing


def test_no_tests_differs_from_tests_that_cannot_start(repo: Path, call: Callable[..., ToolResult]) -> None:
    write(repo, {"tests/test_stock.py": "import pytest\n"})
    empty = run(repo)
    assert empty.no_tests
    assert empty.could_start
    assert not empty.passed
    assert "No tests were found" in report_text(empty)
    write(repo, {"conftest.py": "import nothing_of_that_name\n"})
    broken = run(repo)
    assert not broken.could_start
    assert not broken.no_tests
    assert "nothing_of_that_name" in broken.reason
    assert report_text(broken).startswith("The tests cannot start: ")


def test_a_missing_runner_cannot_start(repo: Path, tmp_path: Path) -> None:
    assert not run(repo, command="no-such-runner --all").could_start
    assert not run(repo, python=str(tmp_path / "none")).could_start
    bare = tmp_path / "bare"
    asyncio.run(_make_venv(bare))
    report = run(repo, python=str(bare / "bin" / "python"))
    assert not report.could_start
    assert "No module named pytest" in report.reason


async def _make_venv(folder: Path) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "venv", "--without-pip", str(folder))
    assert await process.wait() == 0


UNITTESTS = """\
import unittest
from shop.stock import Stock


class StockTest(unittest.TestCase):
    def setUp(self):
        self.stock = Stock()
        self.stock.add("nail", 2)

    def test_level(self):
        self.assertEqual(self.stock.level("nail"), 2)

    def test_wrong(self):
        self.assertEqual(self.stock.level("nail"), 3)

    def test_raises(self):
        self.stock.items[1]

    @unittest.skip("no")
    def test_skip(self): ...

    @unittest.expectedFailure
    def test_expected(self):
        self.fail()

    def test_parts(self):
        for n in range(3):
            with self.subTest(n=n):
                self.assertNotEqual(n, 1)
"""


def test_unittest_without_pytest(repo: Path, tmp_path: Path) -> None:
    write(repo, {"tests/test_stock.py": UNITTESTS, "tests/test_bad.py": "import unittest, shop.none\n"})
    asyncio.run(_make_venv(repo / ".venv"))
    report = run(repo, trace=True)
    assert report.command == "python -m unittest"
    assert report.outcomes == {
        "test_bad": "error",
        "test_stock.StockTest.test_level": "passed",
        "test_stock.StockTest.test_wrong": "failed",
        "test_stock.StockTest.test_raises": "failed",
        "test_stock.StockTest.test_skip": "skipped",
        "test_stock.StockTest.test_expected": "xfailed",
        "test_stock.StockTest.test_parts": "failed",
    }
    wrong = next(f for f in report.failures if f.test_id.endswith("test_wrong"))
    assert wrong.message == "AssertionError: 2 != 3"
    assert wrong.frames == (("tests/test_stock.py", 14, "StockTest.test_wrong"),)
    assert "Stock.level" in report.executed["shop/stock.py"]
    ids = tuple(f"test_stock.StockTest.test_{name}" for name in ("level", "parts", "raises", "wrong"))
    stopped = run(repo, ids, stop_at_failure=True)
    assert dict(stopped.outcomes) == {ids[0]: "passed", ids[1]: "failed"}


def test_pytest_somewhere_inside_another_command_is_recorded(repo: Path) -> None:
    write(repo, {"run.sh": f"exec {sys.executable} -m pytest -p no:cacheprovider tests\n"})
    report = run(repo, command="sh run.sh && true", environment=dict(os.environ))
    assert report.outcomes == OUTCOMES
    assert report.command == "sh run.sh && true"


def test_the_tests_do_not_see_the_recorder(repo: Path) -> None:
    code = (
        "import os\n\ndef test_env():\n"
        "    assert not [n for n in os.environ if n.startswith('M3_TEST')]\n"
        "    assert 'recorder' not in os.environ.get('PYTHONPATH', '')\n"
    )
    write(repo, {"tests/test_env.py": code})
    assert run(repo, ("tests/test_env.py",)).passed


def test_sources_under_src_come_before_an_installed_copy(repo: Path, tmp_path: Path) -> None:
    write(tmp_path / "other", {"thing.py": "WHERE = 'installed'\n"})
    test = "import thing\n\ndef test_w():\n    assert thing.WHERE == 'here'\n"
    write(repo, {"src/thing.py": "WHERE = 'here'\n", "tests/test_w.py": test})
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "other")}
    assert run(repo, ("tests/test_w.py",), environment=environment).passed


PLAIN = {
    "cargo": (
        "test a::b ... ok\ntest a::c ... FAILED\ntest d ... ignored",
        {"a::b": "passed", "a::c": "failed", "d": "skipped"},
    ),
    "go": (
        "--- PASS: TestA (0.00s)\n    --- FAIL: TestB/x (0.00s)\n--- FAIL: TestB (0.0s)",
        {"TestA": "passed", "TestB/x": "failed", "TestB": "failed"},
    ),
    "TAP": (
        "ok 1 - adds\nnot ok 2 - takes\nok 3 - later # SKIP",
        {"adds": "passed", "takes": "failed", "later": "skipped"},
    ),
    "ctest": (
        "      Start 1: adds\n1/3 Test #1: adds ......   Passed    0.00 sec\n"
        "2/3 Test #2: takes two ...***Exception: SegFault  0.00 sec\nok 1 - inner\n"
        "3/3 Test #3: later ......***Not Run (Disabled)   0.00 sec",
        {"adds": "passed", "takes two": "failed", "later": "skipped"},
    ),
    "jest": ("  ✓ adds (3 ms)\n  ✕ takes (1 ms)", {"adds": "passed", "takes": "failed"}),
}  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_other_runners_are_read_where_that_is_easy(tmp_path: Path, name: str) -> None:
    text, outcomes = PLAIN[name]
    write(tmp_path, {"out.txt": text})
    assert run(tmp_path, command="cat out.txt; exit 1").outcomes == outcomes


NODE = """\
ok 1 - adds
not ok 2 - keeps the sign
  ---
  duration_ms: 1.025604
  location: '{root}/test/format.test.js:10:1'
  failureType: 'testCodeFailure'
  error: |-
    Expected values to be strictly equal:

    '-1024B' !== '-1KB'

  code: 'ERR_ASSERTION'
  stack: |-
    TestContext.<anonymous> ({root}/test/format.test.js:11:10)
    Test.runInAsyncScope (node:async_hooks:203:9)
  ...
"""


def test_a_failure_of_node_is_told_with_its_error_and_its_place(tmp_path: Path) -> None:
    """Six lines below `not ok` were shown, and the error came in the seventh."""
    root = Path(os.path.realpath(tmp_path))
    write(root, {"out.txt": NODE.format(root=root)})
    (failure,) = run(root, command="cat out.txt; exit 1").failures
    assert failure.message.splitlines() == [
        "Expected values to be strictly equal:",
        "'-1024B' !== '-1KB'",
        "at TestContext.<anonymous> (test/format.test.js:11:10)",
    ]


CMAKE = """\
cmake_minimum_required(VERSION 3.10)
project(thing NONE)
include(CTest)
add_test(NAME adds COMMAND true)
add_test(NAME takes COMMAND sh -c "echo 1:adds:PASS; echo 2:takes:FAIL: Expected 3; exit 1")
"""
needs_ctest = pytest.mark.skipif(
    not (shutil.which("cmake") and shutil.which("ctest") and shutil.which("make")), reason="cmake or make is missing"
)


@needs_ctest
def test_a_project_of_cmake_is_built_and_tested_and_left_clean(tmp_path: Path) -> None:
    """There were tests, and a repair in C could not be proven."""
    write(tmp_path, {"CMakeLists.txt": CMAKE})
    report = run(tmp_path)
    assert report.outcomes == {"adds": "passed", "takes": "failed"}
    assert report.failures[0].message == "2:takes:FAIL: Expected 3"
    assert report.command == "cmake -S . -B build && cmake --build build && cd build && ctest --output-on-failure"


def test_a_project_of_cmake_is_built_where_git_ignores_it_and_need_not_be_built_again(tmp_path: Path) -> None:
    write(tmp_path, {"CMakeLists.txt": CMAKE, ".gitignore": "build/\n"})
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    runner = find_runner(tmp_path)
    assert runner is not None
    assert runner.command(tmp_path, (), tmp_path / "scratch")[-1] == runner.shown


def test_what_a_compiler_says_comes_before_the_last_lines(tmp_path: Path) -> None:
    write(tmp_path, {"out.txt": "a.c:3:1: error: unknown type\n" + "noise\n" * 9 + "make: *** [all] Error 2\n"})
    (failure,) = run(tmp_path, command="cat out.txt; exit 2").failures
    assert failure.message.splitlines()[0] == "a.c:3:1: error: unknown type"


def test_the_packages_of_a_monorepo_are_found_and_imported_from_its_own_sources(tmp_path: Path) -> None:
    """No tests were found, since they stood beside each package; one was not installed, and wants its own folder."""
    files = {
        "README.md": "",
        "packages/flat/setup.py": "",
        "packages/flat/flat/__init__.py": "X = 1\n",
        "packages/flat/tests/test_flat.py": "import flat\n\ndef test_flat():\n    assert flat.X == 1\n",
        "packages/laid/pyproject.toml": "",
        "packages/laid/src/laid/__init__.py": "X = 2\n",
        "packages/laid/tests/test_laid.py": "import laid\n\ndef test_laid():\n    assert laid.X == 2\n",
        "packages/laid/tests/data.txt": "2",
        "packages/laid/tests/test_data.py": "X = open('tests/data.txt').read()\n\ndef test_data():\n    "
        "assert open('tests/data.txt').read() == X\n",
        "packages/odd/setup.py": "",
        "packages/odd/types.py": "raise SystemExit('in place of a module of Python')\n",
        "packages/odd/odd/__init__.py": "",
    }
    write(tmp_path, files)
    report = run(tmp_path)
    assert report.passed, report.output
    assert sorted(report.outcomes) == [
        "packages/flat/tests/test_flat.py::test_flat",
        "packages/laid/tests/test_data.py::test_data",
        "packages/laid/tests/test_laid.py::test_laid",
    ]
    chosen = run(tmp_path, ("packages/laid/tests/test_data.py::test_data",))
    assert chosen.outcomes == {"packages/laid/tests/test_data.py::test_data": "passed"}


def test_no_tests_at_all_is_said_without_a_command(tmp_path: Path) -> None:
    report = run(tmp_path)
    assert report.no_tests
    assert report_text(report) == (
        "No tests were found: nothing here looks like tests, and no command that runs them was given."
    )


CARGO = """\
test snake::tests::test1 ... FAILED
test snake::tests::test16 ... FAILED

failures:

---- snake::tests::test1 stdout ----

thread 'snake::tests::test1' panicked at src/snake.rs:72:5:
assertion `left == right` failed
  left: "camelcase"
 right: "camel_case"
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace

---- snake::tests::test16 stdout ----

thread 'snake::tests::test16' panicked at src/snake.rs:91:5:
no digit
stack backtrace:
   0: __rustc::rust_begin_unwind

failures:
    snake::tests::test1
    snake::tests::test16

test result: FAILED. 0 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.09s
"""
GO = """\
=== RUN   TestA
    a_test.go:7: left 1, right 2
--- FAIL: TestA (0.00s)
=== RUN   TestB
--- PASS: TestB (0.00s)
FAIL
exit status 1
"""


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (
            CARGO,
            [
                "thread 'snake::tests::test1' panicked at src/snake.rs:72:5:\nassertion `left == right` failed\n"
                '  left: "camelcase"\n right: "camel_case"',
                "thread 'snake::tests::test16' panicked at src/snake.rs:91:5:\nno digit",
            ],
        ),
        (GO, ["    a_test.go:7: left 1, right 2"]),
    ],
    ids=["cargo", "go"],
)
def test_a_failure_is_told_with_what_its_test_printed(tmp_path: Path, text: str, messages: list[str]) -> None:
    """The last place that named the test was a list of names, or the verdict; what it said stood above."""
    write(tmp_path, {"out.txt": text})
    assert [f.message for f in run(tmp_path, command="cat out.txt; exit 101").failures] == messages


def test_else_the_exit_code_decides(tmp_path: Path) -> None:
    assert run(tmp_path, command="echo fine; true").passed
    failed = run(tmp_path, command="echo wrong; false")
    assert failed.outcomes == {"echo wrong; false": "failed"}
    assert failed.failures[0].message == "wrong"


def test_detection(tmp_path: Path) -> None:
    def kind(**files: str) -> str:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        write(root, {n.replace("__", "/").replace("_dot_", "."): t for n, t in files.items()} or {"x": ""})
        runner = find_runner(root)
        return "none" if runner is None else f"{runner.kind} {' '.join(runner.argv[1:])}".strip()

    assert kind() == "none"
    assert kind(pytest_dot_ini="") == "pytest -m pytest"
    assert kind(pyproject_dot_toml="[tool.pytest.ini_options]\n") == "pytest -m pytest"
    assert kind(setup_dot_cfg="[tool:pytest]\n") == "pytest -m pytest"
    assert kind(tox_dot_ini="[pytest]\n") == "pytest -m pytest"
    assert kind(tests__unit__test_a_dot_py="import pytest\n") == "pytest -m pytest"
    assert kind(go_dot_mod="") == "generic test -v ./..."
    assert kind(Cargo_dot_toml="").startswith("generic test")
    assert kind(package_dot_json='{"scripts": {"test": "x"}}') == "generic test"
    assert kind(package_dot_json="{}", README="") == "none"
    assert kind(Makefile="all:\n\techo\ncheck: all\n") == "generic check"
    assert kind(Makefile="test := 1\nall:\n") == "none"
    assert kind(CMakeLists_dot_txt="project(x)\n") == "none"
    assert "ctest" in kind(CMakeLists_dot_txt="Enable_Testing()\n", Makefile="test:\n")
    assert kind(Makefile="test:\n", a__b__tests__test_a_dot_py="import pytest\n", a__b__setup_dot_py="") == (
        "generic test"
    )
    assert kind(pyproject_dot_toml="not toml [", setup_dot_cfg="not [ini") == "none"


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("pytest -q tests", "pytest"),
        ("python -m pytest", "pytest"),
        ("python3 -m unittest", "unittest"),
        ("pytest; true", "generic"),
        ("make test", "generic"),
        ("'", "generic"),
    ],
)
def test_a_given_command_is_understood(tmp_path: Path, command: str, kind: str) -> None:
    runner = find_runner(tmp_path, command=command)
    assert runner is not None
    assert runner.kind == kind


def test_compare() -> None:
    def report(**outcomes: Any) -> TestReport:
        return TestReport(command="", outcomes=outcomes, failures=(), exit_code=0, duration_s=0)

    before = report(a="passed", b="failed", c="failed", d="passed", e="skipped", f="error", g="passed", h="failed")
    after = report(a="failed", b="passed", c="error", d="skipped", e="failed", f="failed", i="failed", j="passed")
    result = compare(before, after)
    assert result.fixed == ("b",)
    assert result.broken == ("a", "e", "i")
    assert result.still_failing == ("c", "f", "h")  # h vanished: that is no repair
    assert result.missing == ("d", "g")


def test_the_tool_gives_text_data_and_a_block(
    call: Callable[..., ToolResult], context: ToolContext, repo: Path
) -> None:
    context.root = repo.resolve()
    result = call(RunTests(trace=True), tests=[T + "test_reorder"])
    assert not result.is_error
    assert isinstance(result.data, TestReport)
    assert result.text == report_text(result.data)
    (block,) = result.display
    assert isinstance(block, base.TestsBlock)
    assert (block.passed, block.failed) == (0, 1)
    assert block.failures == ("tests/test_stock.py::test_reorder: AssertionError: assert 7 == 8",)
