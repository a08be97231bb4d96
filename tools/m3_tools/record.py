"""From the lines that a recorder wrote, or from what another runner printed, to the parts of a TestReport."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from m3_tools.base import ToolError
from m3_tools.files import read_bytes
from m3_tools.paths import resolve_inside
from m3_tools.report import RANK, Outcome, TestFailure, is_test_file
from m3_tools.symbols import Definition, definitions, enclosing

_COLLECT_FRAME = re.compile(r"^(?P<path>[^\s:][^:\n]*\.py):(?P<line>\d+): in (?P<function>.+)$", re.MULTILINE)
_UNITTEST_FRAME = re.compile(r'^  File "(?P<path>[^"]+)", line (?P<line>\d+), in (?P<function>.+)$', re.MULTILINE)


@dataclasses.dataclass
class Record:
    """What a recorder saw. `started` is False if the runner never came to life."""

    started: bool = False
    finished: bool = False
    outcomes: dict[str, Outcome] = dataclasses.field(default_factory=dict)
    durations: dict[str, float] = dataclasses.field(default_factory=dict)
    failures: dict[str, TestFailure] = dataclasses.field(default_factory=dict)
    collection_errors: list[TestFailure] = dataclasses.field(default_factory=list)
    internal_error: str = ""
    executed: dict[str, dict[str, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    scores: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)


def read_record(
    path: Path, root: Path, *, timed_out: bool, timeout_s: float, names: FunctionNames | None = None
) -> Record:
    """The record at `path`; an unfinished last line is ignored. A test cut off by the deadline counts as failed.

    `names` of an earlier call with the same files saves parsing them again.
    """
    events = list(_events(path))
    names = names or FunctionNames(root)
    record = Record()
    running: dict[str, None] = {}
    hangs: dict[str, Any] = {}
    for event in events:
        kind = event["event"]
        if kind == "start":
            record.started = True
        elif kind == "finish":
            record.finished = True
        elif kind == "internal_error":
            record.internal_error = event["text"]
        elif kind == "collect_error":
            error = _collection_error(event, root, names)
            record.collection_errors.append(error)
            record.outcomes[error.test_id] = "error"
            record.failures[error.test_id] = error
        elif kind == "test_start":
            running[event["id"]] = None
        elif kind == "hang":
            hangs[event["id"]] = event["frames"]
        elif kind == "phase":
            _add_phase(record, event, names)
            if event["when"] == "teardown":
                running.pop(event["id"], None)
    if not record.finished:
        _add_cut_off(record, running, hangs, names, timed_out, timeout_s)
    _add_trace(record, events, names)
    return record


def _events(path: Path) -> Iterable[dict[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return
    for line in lines[:-1]:
        try:
            yield json.loads(line)
        except ValueError:
            continue


def _add_phase(record: Record, event: dict[str, Any], names: FunctionNames) -> None:
    test_id, when, result = event["id"], event["when"], event["outcome"]
    record.durations[test_id] = record.durations.get(test_id, 0.0) + event["duration_s"]
    outcome: Outcome
    if result == "passed":
        if when != "call":
            return
        outcome = "xpassed" if event["xfail"] else "passed"
    elif result == "skipped":
        outcome = "xfailed" if event["xfail"] else "skipped"
    elif result == "failed":
        outcome = "failed" if when == "call" else "error"
    else:
        return
    known = record.outcomes.get(test_id)
    if known is None or RANK[outcome] > RANK[known]:
        record.outcomes[test_id] = outcome
    if result == "failed" and test_id not in record.failures:
        detail = event["failure"] or {"type": "Failure", "message": event["text"].strip(), "frames": []}
        record.failures[test_id] = TestFailure(
            test_id=test_id,
            error_type=detail["type"],
            message=detail["message"],
            frames=names.frames(detail["frames"]),
            text=event["text"],
        )


def _add_cut_off(
    record: Record,
    running: dict[str, None],
    hangs: dict[str, Any],
    names: FunctionNames,
    timed_out: bool,
    timeout_s: float,
) -> None:
    """Tests that began and never ended: they hung until the deadline, or took the process down."""
    if timed_out and not running and "" in hangs:
        frames = names.frames(hangs[""])
        message = f"Timeout: still importing or collecting at the deadline of {timeout_s:g} s"
        error = TestFailure(test_id=".", error_type="Timeout", message=message, frames=frames)
        record.collection_errors.append(error)
        record.outcomes["."], record.failures["."] = "error", error
    for test_id in running:
        if test_id in record.outcomes:
            continue
        error_type = "Timeout" if timed_out else "Crash"
        message = (
            f"still running at the deadline of {timeout_s:g} s" if timed_out else "the test process died in this test"
        )
        record.outcomes[test_id] = "failed"
        record.failures[test_id] = TestFailure(
            test_id=test_id,
            error_type=error_type,
            message=f"{error_type}: {message}",
            frames=names.frames(hangs.get(test_id, [])),
        )


def _collection_error(event: dict[str, Any], root: Path, names: FunctionNames) -> TestFailure:
    text = event["text"]
    frames: list[tuple[str, int, str]] = []
    for match in [*_COLLECT_FRAME.finditer(text), *_UNITTEST_FRAME.finditer(text)]:
        path = match["path"]
        if path.startswith(f"{root}/"):
            path = path[len(str(root)) + 1 :]
        if not path.startswith(("/", "..", "<")):
            frames.append((path, int(match["line"]), match["function"]))
    errors = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    message = "\n".join(errors) or (text.strip().splitlines() or ["cannot be collected"])[-1]
    error_type = message.splitlines()[-1].partition(":")[0].strip()
    return TestFailure(
        test_id=event["id"] or ".", error_type=error_type, message=message, frames=names.frames(frames), text=text
    )


def _add_trace(record: Record, events: list[dict[str, Any]], names: FunctionNames) -> None:
    """Functions of non-test code that failing tests ran, by the Ochiai score: how well they tell failing from
    passing.
    """
    lines: dict[tuple[str, str], set[int]] = {}
    failing: dict[tuple[str, str], set[str]] = {}
    passing: dict[tuple[str, str], int] = {}
    traced: set[str] = set()
    for event in events:
        if event["event"] == "trace":
            traced.add(event["id"])
            for path, first_line, run_lines in event["functions"]:
                name = None if is_test_file(path) else names.name(path, first_line)
                if name is not None:
                    lines.setdefault((path, name), set()).update(run_lines)
                    failing.setdefault((path, name), set()).add(event["id"])
        elif event["event"] == "passing":
            for path, first_line, count in event["functions"]:
                name = names.name(path, first_line)
                if name is not None:
                    passing[path, name] = max(passing.get((path, name), 0), count)
    score = {
        key: len(tests) / math.sqrt(len(traced) * (len(tests) + passing.get(key, 0))) for key, tests in failing.items()
    }
    for path, name in sorted(score, key=lambda key: -score[key]):  # stable: ties stay in the order of their first call
        record.executed.setdefault(path, {})[name] = tuple(sorted(lines[path, name]))
        record.scores.setdefault(path, {})[name] = round(score[path, name], 4)


class FunctionNames:
    """Dotted names of functions by file and line, the same names that the read tool takes as symbol."""

    def __init__(self, root: Path):
        self._root = root
        self._found: dict[str, list[Definition]] = {}

    def name(self, path: str, line: int) -> str | None:
        if path not in self._found:
            try:
                real = resolve_inside(self._root, path)
                self._found[path] = definitions(path, read_bytes(real, path))
            except ToolError:
                self._found[path] = []
        found = enclosing(self._found[path], line)
        return found.name if found else None

    def frames(self, frames: Iterable[tuple[str, int, str]]) -> tuple[tuple[str, int, str], ...]:
        return tuple((path, line, self.name(path, line) or function) for path, line, function in frames)
