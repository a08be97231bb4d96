"""Where the text that a model wants replaced stands in a file: four rungs, each stricter one tried first.

exact; line endings ignored; trailing space ignored; indented otherwise by the same amount everywhere. A rung counts
only if it finds the text, and decides only if it finds it once (or all occurrences were asked for). The lower rungs
take from the file every line that the edit leaves alone, so its bytes stay as they are.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator

from m3_tools.base import ToolError
from m3_tools.text import Text, shown, split_lines, with_ending

RUNGS = ("exact", "line endings", "trailing space", "indentation")
_MAX_DIFF_LINES = 40


class NotFound(ToolError):
    """The text is nowhere in the file, on no rung."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Replacement:
    """`text[start:end]` of the file is to become `new`."""

    start: int
    end: int
    new: str


def find(source: Text, old: str, new: str, *, every: bool = False) -> tuple[str, list[Replacement]]:
    """The rung that matched and its replacements in order: one, or all if `every`.

    Raises NotFound if `old` is not there (with the nearest lines as a diff), ToolError if it is there more than once.
    """
    for rung, search in zip(RUNGS, (_exact, _ignoring_endings, _ignoring_trailing_space, _reindented), strict=True):
        found = list(search(source, old, new))
        if not found:
            continue
        if len(found) > 1 and not every:
            raise ToolError(_ambiguous(source, found, rung))
        return rung, _without_overlaps(found)
    raise NotFound(near_miss(source, old))


def _without_overlaps(found: list[Replacement]) -> list[Replacement]:
    kept: list[Replacement] = []
    for replacement in found:
        if not kept or replacement.start >= kept[-1].end:
            kept.append(replacement)
    return kept


def _exact(source: Text, old: str, new: str) -> Iterator[Replacement]:
    start = source.text.find(old)
    while start >= 0:
        piece = new
        if "\r\n" not in new and "\n" in new and "\r\n" not in old:
            # The model writes LF. Where the file has CRLF, the lines that it adds get CRLF.
            first = old.find("\n")
            piece = with_ending(new, source.ending_at(start) if first < 0 else "\n")
        yield Replacement(start=start, end=start + len(old), new=piece)
        start = source.text.find(old, start + 1)


def _ignoring_endings(source: Text, old: str, new: str) -> Iterator[Replacement]:
    return _by_pattern(source, old, new, r"(?:\r\n|\n|\r)")


def _ignoring_trailing_space(source: Text, old: str, new: str) -> Iterator[Replacement]:
    return _by_pattern(source, old, new, r"[ \t]*(?:\r\n|\n|\r)")


def _by_pattern(source: Text, old: str, new: str, ending: str) -> Iterator[Replacement]:
    """Matches whose line ends fit `ending`. They may begin and end inside a line."""
    old_lines, new_lines = _contents(old), _contents(new)
    if old_lines[-1] == "" == new_lines[-1] and len(old_lines) > 1 and len(new_lines) > 1:
        old_lines, new_lines = old_lines[:-1], new_lines[:-1]  # both end in a line end: the file's own stays
    if not any(line.strip() for line in old_lines):
        return
    tolerant = ending.startswith("[")
    parts = [re.escape(line.rstrip(" \t") if tolerant else line) for line in old_lines]
    pattern = ending.join(parts) + (r"[ \t]*(?=\r|\n|\Z)" if tolerant and old_lines[-1] else "")
    for match in _overlapping(re.compile(pattern), source.text):
        pieces = split_lines(match.group())
        contents = [match.group()[p.start : p.end] for p in pieces]
        contents += [""] * (len(old_lines) - len(contents))  # an empty last line has no piece
        endings = [p.ending for p in pieces]
        new_text = _merge(contents, endings, old_lines, new_lines, source.ending_at(match.start()), lambda line: line)
        yield Replacement(start=match.start(), end=match.end(), new=new_text)


def _overlapping(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    match = pattern.search(text)
    while match:
        yield match
        match = pattern.search(text, match.start() + 1)


def _reindented(source: Text, old: str, new: str) -> Iterator[Replacement]:
    """Whole lines that differ from `old` by the same indentation everywhere, spaces against tabs included."""
    old_lines, new_lines = _contents(old), _contents(new)
    if old_lines[-1] == "" and len(old_lines) > 1:
        old_lines, new_lines = old_lines[:-1], new_lines[:-1] if new_lines[-1] == "" else new_lines
    if not any(line.strip() for line in old_lines):
        return
    lines = source.lines()
    contents = [source.text[line.start : line.end] for line in lines]
    stripped = [content.strip(" \t") for content in contents]
    wanted = [line.strip(" \t") for line in old_lines]
    for first in range(len(lines) - len(wanted) + 1):
        if stripped[first : first + len(wanted)] != wanted:
            continue
        window = contents[first : first + len(wanted)]
        shift = _uniform_shift(old_lines, window)
        if shift is None:
            continue
        try:
            moved = [shift(line) for line in new_lines]
        except ValueError:
            continue
        chosen = lines[first : first + len(wanted)]
        ending = source.ending_at(chosen[0].start)
        new_text = _merge(
            window,
            [p.ending for p in chosen[:-1]],
            old_lines,
            new_lines,
            ending,
            dict(zip(new_lines, moved, strict=True)).__getitem__,
        )
        yield Replacement(start=chosen[0].start, end=chosen[-1].end, new=new_text)


def _uniform_shift(old_lines: list[str], window: list[str]) -> Callable[[str], str] | None:
    """The one change of indentation that turns every line of `old_lines` into its line of `window`, or None."""
    pairs = [(_indent(o), _indent(w)) for o, w in zip(old_lines, window, strict=True) if o.strip()]
    for convert in _CONVERSIONS:
        added = pairs[0][1].removesuffix(convert(pairs[0][0]))
        if all(added + convert(o) == w for o, w in pairs):
            return lambda line, a=added, c=convert: a + c(_indent(line)) + line.lstrip(" \t") if line.strip() else line  # type: ignore[misc]
        dropped = convert(pairs[0][0]).removesuffix(pairs[0][1])
        if dropped and all(dropped + w == convert(o) for o, w in pairs):
            return lambda line, d=dropped, c=convert: (
                _drop(c(_indent(line)), d) + line.lstrip(" \t") if line.strip() else line
            )  # type: ignore[misc]
    return None


def _drop(indent: str, dropped: str) -> str:
    if not indent.startswith(dropped):
        raise ValueError("a new line is indented less than what would be taken away")
    return indent[len(dropped) :]


_CONVERSIONS: tuple[Callable[[str], str], ...] = (
    lambda indent: indent,
    lambda indent: indent.replace("    ", "\t"),
    lambda indent: indent.replace("  ", "\t"),
    lambda indent: indent.replace("\t", "    "),
    lambda indent: indent.replace("\t", "  "),
)


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" \t"))]


def _contents(text: str) -> list[str]:
    """The lines of a model's text; a final line end gives a last empty line."""
    return re.split(r"\r\n|\n|\r", text)


def _merge(
    file_lines: list[str], endings: list[str], old: list[str], new: list[str], ending: str, adapt: Callable[[str], str]
) -> str:
    """`new` as it goes into the file: lines that `old` and `new` share come from the file, others from `new` adapted.

    `file_lines` correspond to `old` one to one; `endings` are the file's line ends between them; `ending` is for new
    lines.
    """
    rows: list[tuple[str, str]] = []
    for tag, i, j, k, m in _aligned(old, new):
        if tag == "equal":
            rows += [(file_lines[n], endings[n] if n < len(endings) and endings[n] else ending) for n in range(i, j)]
        else:
            rows += [(adapt(line), endings[i] if i < len(endings) and endings[i] else ending) for line in new[k:m]]
    return "".join(content + end for content, end in rows[:-1]) + (rows[-1][0] if rows else "")


def _aligned(old: list[str], new: list[str]) -> Iterator[tuple[str, int, int, int, int]]:
    """Opcodes from `old` to `new`. What they share at both ends stays, so that repeated lines keep their places."""
    shortest = min(len(old), len(new))
    head = next((n for n in range(shortest) if old[n] != new[n]), shortest)
    tail = next((n for n in range(shortest - head) if old[-1 - n] != new[-1 - n]), shortest - head)
    yield "equal", 0, head, 0, head
    middle = difflib.SequenceMatcher(None, old[head : len(old) - tail], new[head : len(new) - tail], autojunk=False)
    for tag, i, j, k, m in middle.get_opcodes():
        yield tag, i + head, j + head, k + head, m + head
    yield "equal", len(old) - tail, len(old), len(new) - tail, len(new)


def _ambiguous(source: Text, found: list[Replacement], rung: str) -> str:
    starts = [line.start for line in source.lines()]
    numbers = [sum(s <= r.start for s in starts) for r in found]
    places = ", ".join(f"L{n}|" for n in numbers[:10]) + (" …" if len(numbers) > 10 else "")
    how = "" if rung == RUNGS[0] else f" (ignoring {rung})"
    return (
        f"Nothing was changed: old occurs {len(found)} times{how}, at {places}. "
        "Add lines around it until it is unique, or set replace_all."
    )


def near_miss(source: Text, old: str) -> str:
    """What to tell a model whose text is not in the file: the nearest lines, as a diff against what it sent."""
    lines = [source.text[line.start : line.end] for line in source.lines()]
    wanted = _contents(old.removesuffix("\n"))
    first = _nearest(lines, wanted)
    if first is None:
        return "Nothing was changed: old is not in the file, and no lines resemble it. Read the file again."
    window = lines[first : first + len(wanted)]
    diff = list(difflib.ndiff([_visible(w) for w in wanted], [_visible(w) for w in window]))
    rows = [row for row in diff if not row.startswith("?")][:_MAX_DIFF_LINES]
    return (
        f"Nothing was changed: old is not in the file. Nearest are lines {first + 1}-{first + len(window)} "
        "(- as sent, + as in the file, → a tab, · a space at the end):\n" + "\n".join(rows)
    )


def _nearest(lines: list[str], wanted: list[str]) -> int | None:
    """The first line of the window most like `wanted`: most lines in common, then most characters."""
    targets = {line.strip() for line in wanted if line.strip()}
    if not targets or not lines:
        return None
    common = [line.strip() in targets for line in lines]
    size = min(len(wanted), len(lines))
    counts = [sum(common[:size])]
    for start in range(1, len(lines) - size + 1):
        counts.append(counts[-1] - common[start - 1] + common[start + size - 1])
    best = max(counts)
    if best == 0:
        lead = next(line.strip() for line in wanted if line.strip())
        offset = next(i for i, line in enumerate(wanted) if line.strip())
        close = difflib.get_close_matches(lead, [line.strip() for line in lines[:20_000]], n=1, cutoff=0.6)
        if not close:
            return None
        return max(0, next(i for i, line in enumerate(lines) if line.strip() == close[0]) - offset)
    candidates = [i for i, count in enumerate(counts) if count == best][:20]
    text = "\n".join(wanted)
    return max(
        candidates, key=lambda i: difflib.SequenceMatcher(None, text, "\n".join(lines[i : i + size])).quick_ratio()
    )


def _visible(line: str) -> str:
    body = line.rstrip(" \t")
    return shown((body + line[len(body) :].replace(" ", "·")).replace("\t", "→"))
