"""Which functions may hold the fault: those that the failing tests ran, the most particular ones first."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

from m3_tools.report import TestReport, is_test_file
from m3_tools.symbols import Definition, definitions, enclosing

MAX_SUSPECTS = 24
FRAME_BONUS = 0.25
"""A function on the way to the error is a little more suspect than one that merely ran."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Suspect:
    """A function or method. Lines count from 1; `ran_lines` are those that failing tests executed."""

    path: str
    symbol: str
    first_line: int
    last_line: int
    ran_lines: frozenset[int]
    score: float


def find_suspects(report: TestReport, targets: Sequence[str], root: Path) -> list[Suspect]:
    """Suspects of the failing tests in `targets`, at most MAX_SUSPECTS; test code is never suspect."""
    in_frames: dict[str, set[int]] = {}
    for failure in report.failures:
        if failure.test_id in targets:
            for path, line, _ in failure.frames:
                in_frames.setdefault(path, set()).add(line)
    found: list[Suspect] = []
    for path in dict.fromkeys([*report.executed, *in_frames]):
        if not is_test_file(path):
            found += _in_file(path, report, in_frames.get(path, set()), root)
    found.sort(key=lambda s: (-s.score, s.path, s.first_line))
    return found[:MAX_SUSPECTS]


def _in_file(path: str, report: TestReport, frame_lines: set[int], root: Path) -> Iterator[Suspect]:
    file = (root / path).resolve()
    if not file.is_relative_to(root.resolve()) or not file.is_file():
        return
    found = definitions(path, file.read_bytes())
    names = [d.name for d in found]
    ran: dict[str, tuple[set[int], float]] = {}
    for function, lines in report.executed.get(path, {}).items():
        score = report.scores.get(path, {}).get(function, 0.0)
        if lines and (inner := enclosing(found, min(lines))) is not None:
            name = _readable(inner, found).name
            ran_lines, best = ran.get(name, (set(), 0.0))
            ran[name] = (ran_lines | set(lines), max(best, score))
    for line in frame_lines:
        if (inner := enclosing(found, line)) is not None:
            name = _readable(inner, found).name
            ran_lines, best = ran.get(name, (set(), 0.0))
            ran[name] = (ran_lines | {line}, best)
    for definition in found:
        if definition.name not in ran or names.count(definition.name) > 1:
            continue
        ran_lines, score = ran[definition.name]
        on_the_way = any(definition.first_line <= line <= definition.last_line for line in frame_lines)
        yield Suspect(
            path=path,
            symbol=definition.name,
            first_line=definition.first_line,
            last_line=definition.last_line,
            ran_lines=frozenset(ran_lines),
            score=score + (FRAME_BONUS if on_the_way else 0.0),
        )


def _readable(inner: Definition, found: Sequence[Definition]) -> Definition:
    """The function as it is read: a function inside another one is a part of the outer one."""
    outer = [
        d for d in found if d.first_line <= inner.first_line and inner.last_line <= d.last_line and d.kind != "class"
    ]
    return min(outer, key=lambda d: d.depth, default=inner)
