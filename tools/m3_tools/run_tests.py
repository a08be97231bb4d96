"""The `test` tool, and `run_tests` for programs: run a repository's tests and report what each of them did.

Python tests run under a recorder of ours (`recorder/`), a pytest plugin or a unittest runner that works in the
repository's own interpreter, so results are exact whatever options the repository sets, and what a killed run had
done is not lost. Other commands are judged by their exit code and by what they print, where that is easy to read.
"""

from __future__ import annotations

import json
import os
import shlex
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from m3_tools.base import TestsBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.known_tests import describe_unknown, selects, unknown_ids
from m3_tools.plain_output import failure_message, read_plain_output
from m3_tools.process import ProcessResult, child_environment, run_process
from m3_tools.projects import source_folders
from m3_tools.record import read_record
from m3_tools.report import (
    TestComparison,
    TestCounts,
    TestFailure,
    TestReport,
    changed_since,
    compare,
    failure_lines,
    report_text,
)
from m3_tools.runners import RECORDER_FOLDER, Runner, find_python, find_runner
from m3_tools.sandbox import Sandbox, SandboxError, confined

__all__ = [
    "RunTests", "TestArgs", "TestComparison", "TestCounts", "TestFailure", "TestReport",
    "changed_since", "compare", "find_python", "find_runner", "report_text", "run_tests",
]  # fmt: skip
_INHERITED = ("PYTEST_CURRENT_TEST", "PYTEST_VERSION", "PYTEST_XDIST_WORKER", "PYTEST_XDIST_TESTRUNUID")
_USAGE_ERROR, _INTERNAL_ERROR = 4, 3


class TestArgs(ToolArgs):
    __test__ = False

    tests: tuple[str, ...] = Field(default=(), description="ids as a report shows them; empty: all tests")


class RunTests(Tool[TestArgs]):
    """`command`, `python`, `timeout_s`, `trace` and `compare_runs` are the program's choice, not the model's.

    With `compare_runs` the text of every run of all tests but the first ends with what changed since the last one.
    """

    name: ClassVar[str] = "test"
    description: ClassVar[str] = (
        "Run the repository's tests, all or the given ones. Shows the counts and, for the first three failures, where "
        "and how they failed. Finding no tests is an error. A run that takes too long is stopped and says so."
    )
    args_type: ClassVar[type[ToolArgs]] = TestArgs
    read_only: ClassVar[bool] = False

    def __init__(
        self,
        *,
        command: str | None = None,
        timeout_s: float = 300,
        trace: bool = False,
        python: str | None = None,
        compare_runs: bool = False,
    ):
        self.command, self.timeout_s, self.trace, self.python = command, timeout_s, trace, python
        self.compare_runs = compare_runs
        self._last: dict[Path, TestReport] = {}

    async def run(self, args: TestArgs, context: ToolContext) -> ToolResult:
        report = await run_tests(
            context.root,
            args.tests,
            command=self.command,
            timeout_s=self.timeout_s,
            trace=self.trace,
            python=self.python,
            environment=context.environment,
            spill_dir=context.spill_dir,
            on_output=context.on_output,
            sandbox=context.sandbox,
        )
        counts = report.counts
        block = TestsBlock(
            passed=counts.passed + counts.xfailed + counts.xpassed,
            failed=counts.failed,
            errors=counts.errors,
            skipped=counts.skipped,
            duration_s=round(report.duration_s, 3),
            failures=failure_lines(report.failures) if report.could_start else (report.reason,),
        )
        unusable = not report.could_start or report.no_tests
        text = await self._text(report, args, context)
        return ToolResult(text=text, display=(block,), is_error=unusable, data=report)

    async def _text(self, report: TestReport, args: TestArgs, context: ToolContext) -> str:
        """The report, and what only this tool can say: ids that name no test, the change since the last run."""
        text = report_text(report)
        if not report.could_start or report.timed_out:
            return text
        if args.tests:
            unknown = await self._unknown(report, args, context)
            if unknown and report.no_tests:
                return f"No test was run.\n{describe_unknown(unknown)}"
            return f"{text}\n{describe_unknown(unknown)}" if unknown else text
        last = self._last.get(context.root)
        if not report.no_tests:
            self._last[context.root] = report
            if last is not None and self.compare_runs:
                return f"{text}\n{changed_since(last, report)}"
        return text

    async def _unknown(self, report: TestReport, args: TestArgs, context: ToolContext) -> dict[str, list[str]]:
        if list(report.outcomes) == [report.command]:  # a command that cannot choose, judged by its exit code
            return {}
        errors = {e.test_id for e in report.collection_errors}  # of files whose tests are not known
        wanted = [i for i in args.tests if not any(selects(i, e) or selects(e, i) for e in errors)]
        last = self._last.get(context.root)
        ran = dict.fromkeys(i for r in (report, last) if r for i in r.outcomes if i not in errors)
        return await unknown_ids(context, wanted, list(ran), is_dotted="unittest" in report.command)


async def run_tests(
    root: Path,
    ids: Sequence[str] = (),
    *,
    timeout_s: float = 300,
    command: str | None = None,
    python: str | None = None,
    trace: bool = False,
    load_plugins: bool = True,
    stop_at_failure: bool = False,
    environment: Mapping[str, str] | None = None,
    spill_dir: Path | None = None,
    on_output: Callable[[str], None] | None = None,
    sandbox: Sandbox | None = None,
) -> TestReport:
    """Run the tests in `root`, or those in `ids`, within `timeout_s` seconds; the work tree stays clean.

    `command` replaces detection, `python` the choice of interpreter (a worktree without its own .venv needs it).
    `trace` fills `executed` and `scores` for Python tests. `load_plugins=False` keeps pytest from loading installed
    plugins, which saves up to half a second a run; right only where one run each way gave the same outcomes. With
    `stop_at_failure` a Python test that fails is the last one that runs, where the runner does not share them out. In a
    `sandbox` the tests can write to the work tree and to a private /tmp alone. Raises ToolError for an id that would be
    read as an option.
    """
    root = Path(os.path.realpath(root))
    for test_id in ids:
        if test_id.startswith("-") or "\0" in test_id or not test_id:
            raise ToolError(f"{test_id!r} is not a test id. Give ids as a report shows them.")
    given = environment or {}
    runner = find_runner(root, command=command, python=python, environment=given)
    if runner is None:
        reason = "nothing here looks like tests, and no command that runs them was given"
        return TestReport(
            command="", outcomes={}, failures=(), exit_code=None, duration_s=0, reason=reason, output=reason
        )
    with tempfile.TemporaryDirectory(prefix="m3-tests-") as folder:
        scratch = Path(os.path.realpath(folder))
        if ids:
            (scratch / "only").write_text(json.dumps(list(ids)), "utf-8")
        argv = runner.command(root, ids, scratch)
        try:
            environment = _environment(given, root, scratch, runner, trace, stop_at_failure)
            if not load_plugins:
                environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
            with confined(sandbox, argv, environment, writable=(scratch,)) as inside:
                result = await run_process(
                    inside.argv,
                    cwd=root,
                    environment=inside.environment,
                    timeout_s=timeout_s,
                    spill_dir=spill_dir,
                    on_output=on_output,
                )
        except (ToolError, SandboxError) as error:
            return TestReport(
                command=_shown_command(runner, ids),
                outcomes={}, failures=(), exit_code=127, duration_s=0, could_start=False, reason=str(error),
            )  # fmt: skip
        shown_command = _shown_command(runner, ids)
        if runner.kind == "generic" and not (scratch / "record").exists():
            return _generic_report(shown_command, result, root)
        return _recorded_report(shown_command, result, scratch / "record", root, ids, timeout_s)


def _environment(
    given: Mapping[str, str], root: Path, scratch: Path, runner: Runner, trace: bool, stop_at_failure: bool
) -> dict[str, str]:
    environment = child_environment(given)
    for name in _INHERITED:
        environment.pop(name, None)
    python_path = environment.get("PYTHONPATH", "")
    # The worktree's own sources come before an installed (editable) copy that points at another checkout.
    wanted = os.pathsep.join([*source_folders(root), *([python_path] if python_path else [])])
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(RECORDER_FOLDER), *([wanted] if wanted else [])]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "COVERAGE_FILE": str(scratch / "coverage"),
        "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
        "M3_TEST_PYTHONPATH": wanted,
        "M3_TEST_RECORD": str(scratch / "record"),
        "M3_TEST_ROOT": str(root),
        "M3_TEST_STOP": "1" if stop_at_failure else "0",
        "M3_TEST_TRACE": "1" if trace else "0",
    }
    if (scratch / "only").exists():
        environment["M3_TEST_ONLY"] = str(scratch / "only")
    if runner.folders:
        environment["M3_TEST_FOLDERS"] = os.pathsep.join(runner.folders)
    if runner.kind == "generic":
        # The command may call pytest somewhere inside (make, uv run, a script): then it is recorded all the same.
        environment["PYTEST_PLUGINS"] = ",".join(
            filter(None, [environment.get("PYTEST_PLUGINS"), "m3_pytest_recorder"])
        )
    return environment


def _shown_command(runner: Runner, ids: Sequence[str]) -> str:
    """The command as a person would type it, without what the recorder adds."""
    if runner.shown:
        return runner.shown
    if runner.kind == "generic":
        return runner.argv[2] if runner.argv[:2] == ("/bin/sh", "-c") else shlex.join(runner.argv)
    program = os.path.basename(runner.argv[0])
    words = ["python" if program.startswith("python") else program, *runner.argv[1:]]
    return shlex.join([*words, *(("-m", "unittest") if runner.kind == "unittest" else ()), *ids])


def _recorded_report(
    command: str, result: ProcessResult, record_path: Path, root: Path, ids: Sequence[str], timeout_s: float
) -> TestReport:
    record = read_record(record_path, root, timed_out=result.timed_out, timeout_s=timeout_s)
    could_start, reason = True, ""
    if not record.started:
        could_start, reason = result.timed_out, _start_failure(result)
    elif not record.outcomes and not result.timed_out:
        refused = result.exit_code in (_INTERNAL_ERROR, _USAGE_ERROR) and not ids
        if refused or record.internal_error or not record.finished:
            could_start, reason = False, _last_line(record.internal_error) or _start_failure(result)
    return TestReport(
        command=command,
        outcomes=record.outcomes,
        failures=tuple(record.failures.values()),
        exit_code=result.exit_code,
        duration_s=result.duration_s,
        could_start=could_start,
        reason="" if could_start else reason,
        collection_errors=tuple(record.collection_errors),
        timed_out=result.timed_out,
        executed=record.executed,
        scores=record.scores,
        durations=record.durations,
        output=result.text,
        output_path=result.output_path,
    )


def _generic_report(command: str, result: ProcessResult, root: Path) -> TestReport:
    """From exit code and printed lines. Without readable lines the command itself is the only test."""
    could_start = result.exit_code not in (126, 127)
    outcomes = read_plain_output(result.text)
    if could_start and not result.timed_out and result.exit_code != 0 and "failed" not in outcomes.values():
        outcomes[command] = "failed"
    elif could_start and not outcomes:
        outcomes[command] = "failed" if result.timed_out else "passed"
    lines = result.text.replace(f"{root}/", "").splitlines()

    def said(test_id: str) -> str:
        return failure_message(lines, test_id) or f"exit code {result.exit_code}"

    failures = tuple(
        TestFailure(test_id=i, error_type="Failure", message=said(i)) for i, o in outcomes.items() if o == "failed"
    )
    return TestReport(
        command=command,
        outcomes=outcomes if could_start else {},
        failures=failures if could_start else (),
        exit_code=result.exit_code,
        duration_s=result.duration_s,
        could_start=could_start,
        reason="" if could_start else _start_failure(result),
        timed_out=result.timed_out,
        output=result.text,
        output_path=result.output_path,
    )


def _start_failure(result: ProcessResult) -> str:
    errors = [
        line for line in result.text.splitlines() if "Error" in line or "ERROR" in line or "No module named" in line
    ]
    return (errors or [_last_line(result.text)])[-1].removeprefix("E ").strip() or f"exit code {result.exit_code}"


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")
