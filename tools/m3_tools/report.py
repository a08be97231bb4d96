"""What a test run showed, as values: a report, the comparison of two reports, and the report's text for the model."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Literal

from m3_tools.text import shown

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]
RANK: dict[Outcome, int] = {"skipped": 0, "xfailed": 1, "passed": 2, "xpassed": 3, "error": 4, "failed": 5}
"""Of two outcomes of one test the higher counts."""
MAX_FAILURES, MAX_ERROR_LINES, MAX_LINE_CHARS, MAX_FRAMES, MAX_FUNCTIONS, MAX_FILES = 3, 6, 300, 8, 12, 8
MAX_IDS = 20
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
GOOD = frozenset({"passed", "xfailed", "xpassed"})
BAD = frozenset({"failed", "error"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestFailure:
    """One test that failed or could not run. `frames` are (path, line, function) inside the root, innermost last."""

    __test__ = False  # the name begins like a test class; pytest must not collect it

    test_id: str
    error_type: str
    message: str
    frames: tuple[tuple[str, int, str], ...] = ()
    text: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestCounts:
    __test__ = False

    passed: int = 0
    failed: int = 0
    errors: int = 0
    skipped: int = 0
    xfailed: int = 0
    xpassed: int = 0

    @classmethod
    def of(cls, outcomes: Mapping[str, Outcome]) -> TestCounts:
        values = list(outcomes.values())
        fields = {f.name: values.count(f.name) for f in dataclasses.fields(cls) if f.name != "errors"}  # type: ignore[arg-type]
        return cls(errors=values.count("error"), **fields)

    @property
    def total(self) -> int:
        return sum(dataclasses.astuple(self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestReport:
    """One run of the tests.

    `could_start` is False if the runner itself did not start (no such command, pytest missing, a broken conftest);
    then `reason` says why. A file that cannot be collected is in `collection_errors`, has outcome error under its own
    name, and leaves `could_start` True. `executed` maps path -> function -> lines run by failing tests, test code
    left out, most specific first by `scores` (0 to 1: 1 means run by every failing and no passing test); both are
    empty without a trace.
    """

    __test__ = False

    command: str
    outcomes: Mapping[str, Outcome]
    failures: tuple[TestFailure, ...]
    exit_code: int | None
    duration_s: float
    could_start: bool = True
    reason: str = ""
    collection_errors: tuple[TestFailure, ...] = ()
    timed_out: bool = False
    executed: Mapping[str, Mapping[str, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    scores: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    durations: Mapping[str, float] = dataclasses.field(default_factory=dict)
    output: str = ""
    output_path: Path | None = None

    @property
    def counts(self) -> TestCounts:
        return TestCounts.of(self.outcomes)

    @property
    def no_tests(self) -> bool:
        """The runner started and found nothing to run. Never a success."""
        return self.could_start and not self.outcomes and not self.timed_out

    @property
    def failed_ids(self) -> tuple[str, ...]:
        return tuple(i for i, o in self.outcomes.items() if o in BAD)

    @property
    def passed(self) -> bool:
        """Every test that ran passed, and at least one did."""
        finished = self.could_start and not self.timed_out and self.exit_code == 0
        return finished and not self.failed_ids and any(o in GOOD for o in self.outcomes.values())


@dataclasses.dataclass(frozen=True, kw_only=True)
class TestComparison:
    """What changed between two runs, as test ids. `missing` passed before and did not run or was skipped after."""

    __test__ = False

    fixed: tuple[str, ...]
    broken: tuple[str, ...]
    still_failing: tuple[str, ...]
    missing: tuple[str, ...]


def compare(before: TestReport, after: TestReport) -> TestComparison:
    """Judge `after` against `before`. A test that is new in `after` and fails counts as broken."""
    was, now = before.outcomes, after.outcomes
    return TestComparison(
        fixed=tuple(i for i, o in was.items() if o in BAD and now.get(i) in GOOD),
        broken=tuple(i for i, o in now.items() if o in BAD and was.get(i) not in BAD),
        still_failing=tuple(i for i, o in was.items() if o in BAD and (now.get(i) in BAD or i not in now)),
        missing=tuple(i for i, o in was.items() if o in GOOD and now.get(i, "skipped") == "skipped"),
    )


def is_test_file(path: str) -> bool:
    """Whether the path, relative to the repository, is test code by the usual names."""
    pure = PurePosixPath(path)
    stem = pure.name.partition(".")[0]
    in_folder = any(p in ("tests", "test", "__tests__", "spec") for p in pure.parts[:-1])
    return (
        in_folder
        or stem.startswith("test_")
        or stem.endswith(("_test", "_tests"))
        or stem in ("conftest", "test", "tests")
    )


def report_text(report: TestReport) -> str:
    """The report for the model: counts, at most three errors with frames and message, then what the failing tests ran.

    Failures with the same error are told once, with the ids of all of them.
    """
    if not report.could_start:
        return f"The tests cannot start: {report.reason}\n{_tail(report.output)}".rstrip()
    if report.no_tests:
        ran = f"{report.command} ran and collected none" if report.command else report.reason
        return f"No tests were found: {ran}."
    lines = [_counts_line(report.counts)]
    if report.timed_out:
        lines.append(f"stopped at the deadline after {report.duration_s:.0f} s")
    groups = _by_error(report.failures)
    for first, *same in groups[:MAX_FAILURES]:
        lines += _failure_lines(first, report.outcomes.get(first.test_id) == "error")
        if same:
            lines.append(f"the same error in {len(same)} more: {_ids(f.test_id for f in same)}")
    rest = [failure.test_id for group in groups[MAX_FAILURES:] for failure in group]
    if rest:
        lines.append(f"and {len(rest)} more failures: {_ids(rest)}")
    for path, functions in list(report.executed.items())[:MAX_FILES]:
        names = list(functions)
        more = f" and {len(names) - MAX_FUNCTIONS} more" if len(names) > MAX_FUNCTIONS else ""
        lines.append(f"ran {path}: {', '.join(names[:MAX_FUNCTIONS])}{more}")
    return "\n".join(lines)


def changed_since(before: TestReport, after: TestReport) -> str:
    """One line for the model: what `after` shows otherwise than `before`; both are runs of all tests."""
    change = compare(before, after)
    new = [i for i, o in after.outcomes.items() if o in GOOD and i not in before.outcomes]
    if not (change.fixed or change.broken or change.missing or new):
        return "since the last run: nothing changed"
    parts = [f"{len(change.fixed)} fixed", f"{len(change.broken)} newly failing"]
    parts[1] += f": {_ids(change.broken)}" if change.broken else ""
    if new:
        parts.append(f"{len(new)} new, passing: {_ids(new)}")
    if change.missing:
        parts.append(f"{len(change.missing)} no longer run: {_ids(change.missing)}")
    return f"since the last run: {'; '.join(parts)}"


def _by_error(failures: Sequence[TestFailure]) -> list[list[TestFailure]]:
    """The failures in order, those with the same error type and message together. No message is no error to share."""
    groups: dict[object, list[TestFailure]] = {}
    for failure in failures:
        message = _ADDRESS.sub(" at 0x…", failure.message.strip())
        key = (failure.error_type, message) if message else failure.test_id
        groups.setdefault(key, []).append(failure)
    return list(groups.values())


def _ids(test_ids: Iterable[str]) -> str:
    """Test ids on one line, bounded."""
    ids = [shown(i)[:MAX_LINE_CHARS] for i in test_ids]
    more = f" and {len(ids) - MAX_IDS} more" if len(ids) > MAX_IDS else ""
    return ", ".join(ids[:MAX_IDS]) + more


def _counts_line(counts: TestCounts) -> str:
    shown_counts = [
        (counts.passed, "passed"),
        (counts.failed, "failed"),
        (counts.errors, "error" if counts.errors == 1 else "errors"),
        (counts.skipped, "skipped"),
        (counts.xfailed, "xfailed"),
        (counts.xpassed, "xpassed"),
    ]
    return ", ".join(f"{n} {name}" for n, name in shown_counts if n) or "0 passed"


def _failure_lines(failure: TestFailure, is_error: bool) -> list[str]:
    frames = [f"{path}:{line} in {function}" for path, line, function in failure.frames]
    if len(frames) > MAX_FRAMES:
        frames = [frames[0], f"[… {len(frames) - MAX_FRAMES} frames …]", *frames[1 - MAX_FRAMES :]]
    message = [_short(line) for line in failure.message.splitlines() if line.strip()]
    return [f"{'ERROR' if is_error else 'FAILED'} {shown(failure.test_id)}", *frames, *message[:MAX_ERROR_LINES]]


def _short(line: str) -> str:
    line = _ADDRESS.sub(" at 0x…", shown(line))  # an address differs in every run; without it equal runs read equal
    return (
        line
        if len(line) <= MAX_LINE_CHARS
        else f"{line[:MAX_LINE_CHARS]} [… {len(line) - MAX_LINE_CHARS} more characters]"
    )


def _tail(text: str, num_lines: int = 12) -> str:
    return "\n".join(_short(line) for line in text.rstrip().splitlines()[-num_lines:])


def failure_lines(failures: Sequence[TestFailure]) -> tuple[str, ...]:
    """One line a failure, for the person."""
    return tuple(f"{shown(f.test_id)}: {_short(next(iter(f.message.splitlines()), f.error_type))}" for f in failures)
