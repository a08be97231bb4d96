"""Line labels, `L12|`: taken back out of what a model copied, and where lines have gone after a change."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from m3_tools.text import Line, split_lines

_LABELLED = re.compile(r"L\d+\|")
_MAX_SPANS = 10


def has_labels(text: str) -> bool:
    """Whether every line begins with a label; a final newline begins no line."""
    lines = re.split(r"\r\n|\n", text)
    return all(_LABELLED.match(line) for line in (lines[:-1] if len(lines) > 1 and not lines[-1] else lines))


def without_labels(text: str) -> str:
    """`text` without the labels that a model copied from read: only if every line has one."""
    return re.sub(r"^L\d+\|", "", text, flags=re.MULTILINE) if has_labels(text) else text


@dataclasses.dataclass(frozen=True, kw_only=True)
class Span:
    """Lines that an edit replaced, numbered before it, and the lines that stand there now: none if they were deleted.

    `moved` is by how much the lines below are numbered otherwise.
    """

    first: int
    last: int
    new_first: int
    new_last: int
    moved: int

    @property
    def is_gone(self) -> bool:
        return self.new_last < self.new_first


def spans(before: str, edits: Sequence[tuple[int, int, str]]) -> list[Span]:
    """The lines of each edit of `before`. Edits are (start, end, new text), in order and without overlap."""
    pieces, position = [], 0
    for start, end, new in edits:
        pieces += [before[position:start], new]
        position = end
    after = "".join([*pieces, before[position:]])
    old_lines, new_lines = split_lines(before), split_lines(after)
    found, shift = [], 0
    for start, end, new in edits:
        new_start = start + shift
        shift += len(new) - (end - start)
        first, last = _numbers(old_lines, start, end)
        new_first, new_last = _numbers(new_lines, new_start, new_start + len(new))
        if not new and _is_whole_lines(before, old_lines, start, end):
            new_last = new_first - 1
        moved = _line_at(new_lines, end + shift) - _line_at(old_lines, end)
        found.append(Span(first=first, last=last, new_first=new_first, new_last=new_last, moved=moved))
    return found


def _numbers(lines: Sequence[Line], start: int, end: int) -> tuple[int, int]:
    return _line_at(lines, start), _line_at(lines, max(start, end - 1))


def _line_at(lines: Sequence[Line], position: int) -> int:
    """The number, from 1, of the line that holds `position`; the end of a terminated text counts as a line."""
    low, high = 0, len(lines)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if lines[middle].end + len(lines[middle].ending) <= position else (low, middle)
    is_in_last = bool(lines) and low == len(lines) and not lines[-1].ending
    return max(1, low if is_in_last else low + 1)


def _is_whole_lines(text: str, lines: Sequence[Line], start: int, end: int) -> bool:
    starts = {line.start for line in lines}
    return start in starts and (end in starts or end == len(text))


def label_range(first: int, last: int) -> str:
    return f"L{first}|" if first == last else f"L{first}| to L{last}|"


def describe(found: Sequence[Span]) -> str:
    """What happened to which lines, for the model: `replaced L3| to L5|, now L3| to L7|; lines below moved by +2`."""
    rows = [_described(span) for span in found[:_MAX_SPANS]]
    if len(found) > _MAX_SPANS:
        rows.append(f"and {len(found) - _MAX_SPANS} more, the last {_described(found[-1])}")
    moved = found[-1].moved
    below = "lines below" if len(found) == 1 else "lines below the last"
    return "; ".join([*rows, *([f"{below} moved by {moved:+d}"] if moved else [])])


def _described(span: Span) -> str:
    old, new = label_range(span.first, span.last), label_range(span.new_first, span.new_last)
    if span.is_gone:
        return f"deleted {old}"
    return f"replaced {old}" + (f", now {new}" if new != old else "")
