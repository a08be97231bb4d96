"""The evidence of a fix as a Markdown page: to keep beside the patch, and as the text of a pull request.

It names no folder of the person's machine.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from m3agent.session.export import fenced
from m3agent.ui.clean import one_line

MAX_DIFF_CHARS = 40_000
MAX_RUNS = 30
MAX_NAMED = 20
MAX_CODE_CHARS = 200


def markdown_report(report: Mapping[str, Any], outcome: str, summary: str, *, with_diff: bool = True) -> str:
    """The page: how it ended, warnings, counts, what was not verified, the commands, what it cost, and the diff."""
    tests, tokens = report["tests"], report["tokens"]
    parts = [
        f"# {_plain(report['issue']['title']) or 'A fix'}",
        f"**{_plain(outcome.replace('_', ' '))}**. {_plain(summary)}",
    ]
    if report["flags"]:
        parts.append("\n".join(f"- **Warning**: {_plain(flag)}" for flag in report["flags"]))
    rows = [(name, tests[key]) for name, key in _COUNTED if tests[key]]
    if rows:
        parts.append("## Tests\n\n" + _table(("", *_COLUMNS, "exit code"), [_counts_row(n, c, tests) for n, c in rows]))
    parts += [_named(title, tests[key]) for title, key in _NAMED if tests[key]]
    if report["not_verified"]:
        parts.append("## Not verified\n\n" + "\n".join(f"- {_plain(line)}" for line in report["not_verified"]))
    if report["review"]["text"]:
        parts.append(f"## Review by a fresh fork of the model\n\n{_plain(report['review']['text'], 2000)}")
    if report["runs"]:
        runs = _runs(report["runs"])
        more = f"\n\nand {len(runs) - MAX_RUNS} more" if len(runs) > MAX_RUNS else ""
        head = ("run", "command", "exit code", "tests", "seconds")
        parts.append("## Commands\n\n" + _table(head, runs[:MAX_RUNS]) + more)
    parts.append(
        f"Made by m3 with {_plain(report['model'])}, strategy {report['strategy']}: {report['steps']} turns, "
        f"{tokens['prompt']} tokens read ({tokens['cached']} from the cache), {tokens['completion']} written, "
        f"{report['duration_s']:.0f} s."
    )
    if with_diff and report["diff"]:
        diff = report["diff"]
        parts.append("## Change\n\n" + fenced(diff[:MAX_DIFF_CHARS], "diff"))
        if len(diff) > MAX_DIFF_CHARS:
            parts.append(f"The diff is cut here, at {MAX_DIFF_CHARS} characters of {len(diff)}.")
    return "\n\n".join(parts) + "\n"


_COUNTED = (
    ("before", "before"), ("after", "after"), ("the targets, without the change", "undone"),
    ("with the tests of the change", "delivered"),
)  # fmt: skip
_COLUMNS = ("passed", "failed", "errors", "skipped")
_NAMED = (
    ("Failed before, pass now", "fixed"), ("Tests of the change that fail without it", "shown"),
    ("Passed before, fail now", "broken"), ("Ran before, gone now", "missing"), ("Still failing", "still_failing"),
    ("Flaky, so without weight", "flaky"),
)  # fmt: skip


def _counts_row(name: str, counts: Mapping[str, int], tests: Mapping[str, Any]) -> tuple[object, ...]:
    key = next(key for shown, key in _COUNTED if shown == name)
    return (name, *(counts[column] for column in _COLUMNS), tests["exit_codes"][key])


def _runs(runs: Sequence[Mapping[str, Any]]) -> list[tuple[object, ...]]:
    """A row for each run of the tests; those that repeat one another are one row, with the seconds of all."""
    rows: list[tuple[object, ...]] = []
    for (name, command, code, tests), same in itertools.groupby(
        runs, lambda run: (run["name"], run["command"], run["exit_code"], sum(run["counts"].values()))
    ):
        seconds = [run["duration_s"] for run in same]
        times = f" ({len(seconds)} times)" if len(seconds) > 1 else ""
        rows.append((f"{name}{times}", _code(command), code, tests, f"{sum(seconds):.1f}"))
    return rows


def _named(title: str, ids: Sequence[str]) -> str:
    more = f"\n- and {len(ids) - MAX_NAMED} more" if len(ids) > MAX_NAMED else ""
    return f"{title}:\n\n" + "\n".join(f"- {_code(i)}" for i in ids[:MAX_NAMED]) + more


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join('' if cell is None else str(cell) for cell in line)} |" for line in lines)


def _plain(text: str, limit: int = 600) -> str:
    """Text that came from anywhere as words on one line: no markup, no mention of a person, no reference."""
    return re.sub(r"([\\`*_\[\]<>|#~!&])|@(?=\w)", lambda m: f"\\{m[1]}" if m[1] else "@\u2060", one_line(text, limit))


def _code(text: str) -> str:
    """Text as code within a line or a cell of a table."""
    line = one_line(text, MAX_CODE_CHARS).replace("|", "\\|")
    ticks = "`" * (max((len(run) for run in re.findall(r"`+", line)), default=0) + 1)
    return f"{ticks}{line}{ticks}" if ticks == "`" else f"{ticks} {line} {ticks}"
