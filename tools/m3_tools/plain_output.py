"""What runners other than pytest and unittest print: outcomes by test, and what a failed test says."""

from __future__ import annotations

import re
from collections.abc import Sequence

from m3_tools.report import RANK, Outcome

MAX_LINES = 6
_CTEST_LINE = r"^\s*\d+/\d+ Test\s+#\d+: "
_CTEST_END = re.compile(rf"{_CTEST_LINE}|^\s+Start\s+\d+: |^\d+% tests passed")
_COMPILER_ERROR = re.compile(r"\berror(?: [A-Z]+\d+|\[E\d+\])?: ")
_PLAIN = (
    re.compile(
        rf"{_CTEST_LINE}(?P<id>.+?) \.*\s*"
        r"(?:(?P<skip>\*{3}(?:Skipped|Not Run \(Disabled\)))|"
        r"(?P<outcome>Passed|\*{3}(?:Failed|Exception|Timeout|Not Run)))",
        re.MULTILINE,
    ),  # ctest; first, since the output of its tests may be any of the others
    re.compile(r"^test (?P<id>\S+) \.\.\. (?P<outcome>ok|FAILED|ignored)", re.MULTILINE),  # cargo
    re.compile(r"^\s*--- (?P<outcome>PASS|FAIL|SKIP): (?P<id>\S+)", re.MULTILINE),  # go
    re.compile(
        r"^\s*(?P<outcome>ok|not ok) \d+ - (?P<id>.+?)(?P<skip> # (?:SKIP|TODO).*)?$", re.MULTILINE
    ),  # TAP, node --test
    re.compile(
        r"^\s*(?P<outcome>[✓✔√✕✖×]) (?P<id>.+?)(?: \(\d+(?:\.\d+)? ?m?s\))?$", re.MULTILINE
    ),  # jest, mocha, node spec
)
_PLAIN_OUTCOMES: dict[str, Outcome] = {
    **dict.fromkeys(("ok", "PASS", "✓", "✔", "√", "Passed"), "passed"),
    **dict.fromkeys(("FAILED", "FAIL", "not ok", "✕", "✖", "×"), "failed"),
    **dict.fromkeys(("***Failed", "***Exception", "***Timeout", "***Not Run"), "failed"),
    **dict.fromkeys(("ignored", "SKIP"), "skipped"),
}


def read_plain_output(text: str) -> dict[str, Outcome]:
    """Outcomes by test name from the output of ctest, cargo, go, TAP or a check-mark reporter; empty if it is none
    of these.
    """
    for pattern in _PLAIN:
        outcomes: dict[str, Outcome] = {}
        for match in pattern.finditer(text):
            outcome = "skipped" if match.groupdict().get("skip") else _PLAIN_OUTCOMES[match["outcome"]]
            if RANK[outcome] >= RANK[outcomes.get(match["id"], "skipped")]:
                outcomes[match["id"]] = outcome
        if outcomes:
            return outcomes
    return {}


def failure_message(lines: Sequence[str], test_id: str) -> str:
    """What the output says of one failed test, or of the whole command where that is the only test."""
    about = [i for i, line in enumerate(lines) if test_id in line]
    for number in about:
        if diagnosis := _tap_diagnosis(lines[number:]):
            return "\n".join(diagnosis)
    if printed := _ctest_output(lines, test_id) or _cargo_output(lines, test_id) or _go_output(lines, test_id):
        return "\n".join(printed)
    if about:
        return "\n".join(lines[about[-1] : about[-1] + MAX_LINES])
    return "\n".join([*_compiler_errors(lines), *lines[-MAX_LINES:]][:MAX_LINES])


def _tap_diagnosis(lines: Sequence[str]) -> list[str]:
    """What a TAP runner says below `not ok`, the first of the lines: the error and where it was; else nothing.

    Its block begins with `---`, ends with `...`, and has `key: value` or `key: |-` with indented lines below.
    """
    if len(lines) < 2 or not lines[0].lstrip().startswith("not ok") or lines[1].strip() != "---":
        return []
    indent = len(lines[1]) - len(lines[1].lstrip())
    fields: dict[str, list[str]] = {}
    key = ""
    for line in lines[2:]:
        if line.strip() == "...":
            break
        name, colon, value = line.strip().partition(":")
        if colon and len(line) - len(line.lstrip()) == indent:
            key = name
            fields[key] = [] if value.strip() in ("|-", "|", ">") else [value.strip().strip("'\"")]
        elif key and line.strip():
            fields[key].append(line.strip())
    where = fields.get("stack") or fields.get("location") or []
    return [*fields.get("error", []), *[f"at {place}" for place in where[:1]]]


def _ctest_output(lines: Sequence[str], test_id: str) -> list[str]:
    """What a failed test of ctest printed: its lines that speak of a failure, else all; empty if ctest did not run."""
    start = re.compile(rf"{_CTEST_LINE}{re.escape(test_id)} ")
    first = next((i + 1 for i, line in enumerate(lines) if start.match(line)), None)
    if first is None:
        return []
    end = next((i for i, line in enumerate(lines) if i >= first and _CTEST_END.match(line)), len(lines))
    printed = [line for line in lines[first:end] if line.strip()]
    return [line for line in printed if re.search(r"fail|error|assert", line, re.IGNORECASE)] or printed


def _compiler_errors(lines: Sequence[str]) -> list[str]:
    """The first errors that a compiler printed: what was built last says only that something failed."""
    return [line for line in lines if _COMPILER_ERROR.search(line)][:3]


def _cargo_output(lines: Sequence[str], test_id: str) -> list[str]:
    """What a failed test of cargo printed: its block comes after all tests, and the names of all come after that."""
    start = rf"---- {re.escape(test_id)} stdout ----$"
    return _between(lines, start, r"---- \S+ stdout ----$|failures:$|note: run with |stack backtrace:")


def _go_output(lines: Sequence[str], test_id: str) -> list[str]:
    """What a failed test of `go test -v` printed: it comes before the verdict."""
    return _between(lines, rf"\s*=== RUN\s+{re.escape(test_id)}$", r"\s*(?:=== RUN|--- (?:FAIL|PASS|SKIP):)")


def _between(lines: Sequence[str], start: str, end: str) -> list[str]:
    """The lines after the first that is `start` and before the next that is `end`, without empty ones."""
    first = next((i + 1 for i, line in enumerate(lines) if re.match(start, line)), len(lines))
    last = next((i for i, line in enumerate(lines) if i >= first and re.match(end, line)), len(lines))
    return [line for line in lines[first:last] if line.strip()]
