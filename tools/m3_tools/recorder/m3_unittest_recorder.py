"""Runs a repository's unittest tests, by id or by discovery, and records what happens like the pytest plugin does."""

from __future__ import annotations

import os
import sys
import time
import traceback
import unittest
from typing import Any

import m3_record  # type: ignore[import-not-found]

ExcInfo = Any  # what sys.exc_info() returns; spelled out it would need a newer Python


class RecordingResult(unittest.TestResult):
    """Sends each outcome to the recorder."""

    def __init__(self, recorder: m3_record.Recorder):
        super().__init__()
        self.buffer = False
        self.failfast = recorder.stops
        self._recorder = recorder
        self._started = 0.0

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self._started = time.monotonic()
        self._recorder.write("test_start", id=test.id())

    def addSuccess(self, test: unittest.TestCase) -> None:
        self._phase(test, "passed")

    def addFailure(self, test: unittest.TestCase, err: ExcInfo) -> None:
        super().addFailure(test, err)
        self._phase(test, "failed", err)

    def addError(self, test: unittest.TestCase, err: ExcInfo) -> None:
        super().addError(test, err)
        self._phase(test, "failed", err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: ExcInfo | None) -> None:
        super().addSubTest(test, subtest, err)
        if err is not None:
            self._phase(test, "failed", err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self._phase(test, "skipped")

    def addExpectedFailure(self, test: unittest.TestCase, err: ExcInfo) -> None:
        self._phase(test, "skipped", xfail=True)

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:
        super().addUnexpectedSuccess(test)
        self._phase(test, "failed")

    def _phase(self, test: unittest.TestCase, outcome: str, err: ExcInfo | None = None, xfail: bool = False) -> None:
        failure, text = None, ""
        if outcome == "failed":
            self._recorder.failed.add(test.id())
        if err is not None and err[0] is not None:
            text = "".join(traceback.format_exception(*err))[-20_000:]
            failure = {
                "type": err[0].__name__,
                "message": "".join(traceback.format_exception_only(err[0], err[1])).strip()[:20_000],
                "frames": self._recorder.frames(err[2]),
            }
        duration_s = time.monotonic() - self._started
        self._recorder.write(
            "phase",
            id=test.id(),
            when="call",
            outcome=outcome,
            xfail=xfail,
            duration_s=duration_s,
            failure=failure,
            text=text,
        )


def main(ids: list[str]) -> int:
    recorder = m3_record.Recorder(m3_record.take_settings())
    sys.path.insert(0, os.getcwd())
    recorder.write("start", runner="unittest", version="", python=list(sys.version_info[:3]))
    recorder.watch_deadline()
    loader = unittest.TestLoader()
    folder, pattern = _start_folder()
    if ids:
        sys.path.insert(0, os.path.abspath(folder))  # discovery does the same, and gave the tests these ids
    suite = loader.loadTestsFromNames(ids) if ids else loader.discover(folder, pattern)
    tests = list(_flatten(suite))
    failed_imports = [t for t in tests if type(t).__name__ == "_FailedTest"]
    for test in failed_imports:
        try:
            getattr(test, test._testMethodName)()
        except Exception as error:
            recorder.write("collect_error", id=test._testMethodName, text=str(error))
    tests = [t for t in tests if t not in failed_imports]
    recorder.write("collected", count=len(tests))
    result = RecordingResult(recorder)
    for group in _by_class(tests):
        if not result.shouldStop:
            _run(group, result, recorder)
    exit_code = 0 if result.wasSuccessful() and not failed_imports else 1
    recorder.finish(exit_code)
    return exit_code


def _start_folder() -> tuple[str, str]:
    loose = next(
        (f for f in ("tests", "test") if os.path.isdir(f) and not os.path.exists(os.path.join(f, "__init__.py"))), None
    )
    return (loose, "test*.py") if loose else (".", "test*.py")


def _flatten(suite: Any) -> Any:
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from _flatten(item)
        else:
            yield item


def _by_class(tests: list[Any]) -> list[list[Any]]:
    groups: list[list[Any]] = []
    for test in tests:
        if groups and type(groups[-1][0]) is type(test):
            groups[-1].append(test)
        else:
            groups.append([test])
    return groups


def _run(group: list[Any], result: RecordingResult, recorder: m3_record.Recorder) -> None:
    """One class's tests in one suite, so that its class fixtures run once."""

    class Observed(unittest.TestSuite):
        def __iter__(self) -> Any:
            for test in group:
                with recorder.test(test.id()):
                    yield test

    Observed(group)(result)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
