"""The `grep` tool: lines that match a regular expression, found by ripgrep."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from pathspec import GitIgnoreSpec
from pydantic import Field

from m3_tools.base import MissingPath, TextBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.glob import path_matcher
from m3_tools.paths import printable, resolve_for_reading, shown_name
from m3_tools.ripgrep import MAX_OUTPUT_BYTES, run_ripgrep
from m3_tools.text import shown

MAX_MATCHES = 200
MAX_LINE_CHARS = 300
_SECOND_LOOK_S = 2.0


class GrepArgs(ToolArgs):
    pattern: str = Field(description="regular expression (Rust syntax), searched line by line")
    path: str = Field(default=".", description="file or folder, relative to the repository")
    glob: str | None = Field(default=None, description="only files that match, as in .gitignore: *.py, src/**/*.ts")
    ignore_case: bool = False
    literal: bool = Field(default=False, description="pattern is plain text")
    context: int = Field(default=0, ge=0, le=20, description="lines shown around each match")
    include_ignored: bool = Field(default=False, description="also files that .gitignore leaves out")


class GrepTool(Tool[GrepArgs]):
    name: ClassVar[str] = "grep"
    description: ClassVar[str] = (
        "Search file contents. Matching lines are shown under their file with their label, L30|; lines around them "
        f"as L31-. At most {MAX_MATCHES} matches; long lines are cut around the match. Ignored files are left out "
        "unless asked for; a file that looks binary is named, not shown."
    )
    args_type: ClassVar[type[ToolArgs]] = GrepArgs

    async def run(self, args: GrepArgs, context: ToolContext) -> ToolResult:
        if not args.pattern or "\0" in args.pattern:
            raise ToolError("The pattern is empty or holds a NUL character.")
        search = _search(args, context)
        options = ["--heading", "--null", "--with-filename", "--column", "--binary", f"--context={args.context}"]
        result = await run_ripgrep(context, search.arguments(options), include_ignored=args.include_ignored)
        files = dict(_files(result.head))
        if search.matcher is not None:
            files = {name: rows for name, rows in files.items() if search.wants(name)}
        guarded = [name for name in files if context.secrets.guards(name)]
        for name in guarded:
            del files[name]
        if result.exit_code == 2 and not files:
            raise ToolError(_complaint(args.pattern, _lines(result.head)))
        is_whole = not result.timed_out and result.output_bytes <= MAX_OUTPUT_BYTES
        text = _render(args, context, files, is_whole=is_whole)
        if guarded:
            text += f"\n({_plural(len(guarded), 'file')} of secrets not searched)"
        if not files and is_whole:
            text += await _elsewhere(args, context)
        return ToolResult(text=text, display=(TextBlock(text=text, title=f"grep {printable(args.pattern)}"),))


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Search:
    """What ripgrep is asked. `matcher` judges names relative to `base`, a folder with its slash, or "".

    `excluded` turns its judgement round.
    """

    pattern: str
    target: str
    options: tuple[str, ...]
    matcher: GitIgnoreSpec | None
    base: str
    excluded: bool

    def arguments(self, more: Sequence[str]) -> list[str]:
        globs = ["--glob=!.git", "--glob=!.m3"]
        return [*more, *self.options, *globs, f"--regexp={self.pattern}", "--", self.target]

    def wants(self, name: str) -> bool:
        return self.matcher is None or self.matcher.match_file(name.removeprefix(self.base)) != self.excluded


def _search(args: GrepArgs, context: ToolContext) -> _Search:
    path = resolve_for_reading(context, args.path)
    where = shown_name(context, path)
    if not path.exists():
        raise MissingPath(where, f"{where} does not exist. Find the right name with glob.")
    options = ["--ignore-case"] if args.ignore_case else []
    options += ["--fixed-strings"] if args.literal else []
    excluded = args.glob is not None and args.glob.startswith("!")
    glob = args.glob.removeprefix("!") if args.glob else ""
    name_glob = "" if excluded else posixpath.basename(glob)
    if name_glob and "**" not in name_glob:
        # As a file type and not as --glob, which would bring ignored files back.
        options += [f"--type-add=wanted:{name_glob}", "--type=wanted"]
    # With ./ before it no name begins with a digit, as the rows of a file do.
    target = os.path.join(".", os.path.relpath(path, context.root)) if path != context.root else "."
    return _Search(
        pattern=args.pattern,
        target=target,
        options=tuple(options),
        matcher=path_matcher(glob) if glob or excluded else None,
        excluded=excluded,
        base="" if target == "." else target.removeprefix("./") + "/",
    )


def _complaint(pattern: str, problems: list[str]) -> str:
    """What ripgrep says against a pattern, in one line."""
    said = " ".join(problems)
    if "the literal" in said and "not allowed" in said:
        return "grep searches line by line: the pattern must not hold a line break."
    error = next((p.removeprefix("error: ") for p in problems if p.startswith("error: ")), None)
    if error is None:
        return "grep failed: " + "; ".join(problems[:6])
    # ripgrep puts brackets of its own around the pattern, and takes those for the partners of loose ones.
    is_loose = error in ("unclosed group", "unopened group")
    column = _unbalanced(pattern) if is_loose else _column(pattern, problems)
    place = f", wrong at character {column}" if column else ""
    return (
        f"{pattern!r} is not a regular expression{place}: {error}. "
        "Mend it, or set literal=true to search for it as plain text."
    )


def _column(pattern: str, problems: list[str]) -> int | None:
    """The character, from 1, at which the pattern is wrong; None if ripgrep does not say."""
    wrapped = f"(?:{pattern})"  # as ripgrep shows it
    for line, below in itertools.pairwise(problems):
        if line.strip() == wrapped and below.strip(" ^") == "":
            return below.index("^") - line.index(wrapped) - len("(?:") + 1
    return None


def _unbalanced(pattern: str) -> int | None:
    """The character, from 1, of a bracket without its partner."""
    opened: list[int] = []
    for match in re.finditer(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()]", pattern, re.DOTALL):
        if match.group() == "(":
            opened.append(match.start() + 1)
        elif match.group() == ")":
            if not opened:
                return match.start() + 1
            opened.pop()
    return opened[-1] if opened else None


async def _elsewhere(args: GrepArgs, context: ToolContext) -> str:
    """Whether the same search finds something with ignore_case or include_ignored, as sentences for the model."""
    wider = [name for name in ("ignore_case", "include_ignored") if not getattr(args, name)]
    everything = _search(args.model_copy(update={"ignore_case": True}), context).arguments(["--quiet", "--no-messages"])
    look = await run_ripgrep(context, everything, include_ignored=True, timeout_s=_SECOND_LOOK_S)
    if not wider or look.exit_code == 1:  # mostly so: one search more and not two
        return ""
    found = await asyncio.gather(*(_count(args.model_copy(update={name: True}), context) for name in wider))
    return "".join(f" With {name}=true it matches {count}." for name, count in zip(wider, found, strict=True) if count)


async def _count(args: GrepArgs, context: ToolContext) -> str:
    """How much a search finds within a short time: `3 lines in 2 files`, or nothing."""
    search = _search(args, context)
    options = search.arguments(["--count", "--null", "--no-messages", "--with-filename"])
    result = await run_ripgrep(context, options, include_ignored=args.include_ignored, timeout_s=_SECOND_LOOK_S)
    rows = re.findall(rb"([^\0\n][^\0]*)\0(\d+)\n", result.head)
    names = [(_decoded_name(path), int(count)) for path, count in rows]
    counts = [count for name, count in names if search.wants(name) and not context.secrets.guards(name)]
    least = "at least " if result.timed_out else ""
    return f"{least}{_plural(sum(counts), 'line')} in {_plural(len(counts), 'file')}" if counts else ""


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _files(output: bytes) -> Iterator[tuple[str, bytes]]:
    """Each file that ripgrep printed, by its name relative to the root: its name and a NUL, then its rows.

    Of a binary file there are none: after a NUL the numbers of its lines are off.
    """
    name = b""
    for block in output.removesuffix(b"\n").split(b"\n\n"):
        before, nul, rows = block.partition(b"\0")
        if not nul:
            if found := _BINARY.fullmatch(name + _without_complaints(block)):
                yield _decoded_name(found.group(1)), b""
                name = b""
            else:
                name += block + b"\n\n"  # a name may hold such lines itself
            continue
        if name or not before.startswith(b"./"):
            before, name = name + _without_complaints(before), b""
        if rows.endswith(b")") and _BINARY.fullmatch(rows.rpartition(b"\n")[2]):
            rows = b""
        yield _decoded_name(before), rows


_BINARY = re.compile(rb"(\.{1,2}/.*): binary file matches \(found [^\n]* byte around offset \d+\)", re.DOTALL)
_MATCH = re.compile(rb"^\d+:", re.MULTILINE)
_ROW = re.compile(rb"(\d+)(?:-|:(\d+):)(.*)", re.DOTALL)


def _without_complaints(block: bytes) -> bytes:
    """What ripgrep says of files that it cannot read stands before a name."""
    while block.startswith(b"rg: "):
        block = block.partition(b"\n")[2]
    return block


def _decoded_name(path: bytes) -> str:
    return path.decode(errors="surrogateescape").removeprefix("./")


def _rows(rows: bytes) -> Iterator[tuple[int, bool, str]]:
    """The rows of a file: their number, whether it is a match, and their text."""
    for row in rows.split(b"\n"):
        if not (found := _ROW.fullmatch(row)):
            continue  # a gap between lines, or a complaint of ripgrep
        number, column, content = found.groups()
        start = len(content[: int(column) - 1].decode("utf-8", "replace")) if column else 0
        yield int(number), column is not None, _cut(content.decode("utf-8", "replace").rstrip("\r"), start)


def _lines(output: bytes) -> list[str]:
    return [shown(line.decode("utf-8", "replace")) for line in output.splitlines() if line.strip()]


def _shown_name(name: str, context: ToolContext) -> str:
    return shown_name(context, Path(os.path.normpath(os.path.join(os.path.realpath(context.root), name))))


def _cut(content: str, match_start: int) -> str:
    if len(content) <= MAX_LINE_CHARS:
        return shown(content)
    first = max(0, min(match_start - MAX_LINE_CHARS // 3, len(content) - MAX_LINE_CHARS))
    piece = shown(content[first : first + MAX_LINE_CHARS])
    left = len(content) - first - MAX_LINE_CHARS
    return (f"[{first:,} characters …] " if first else "") + piece + (f" [… {left:,} characters]" if left > 0 else "")


def _render(args: GrepArgs, context: ToolContext, files: dict[str, bytes], *, is_whole: bool) -> str:
    hint = "" if args.include_ignored else " (ignored files were not searched)"
    if args.context:
        total = sum(len(_MATCH.findall(rows)) for rows in files.values())
    else:
        total = sum(rows.count(b"\n") + 1 for rows in files.values() if rows)
    if not files:
        return f"No match for {args.pattern!r} in {printable(args.path)}{hint}." + (
            "" if is_whole else " The search was stopped; narrow it."
        )
    rows: list[str] = []
    num_shown = 0
    for name in sorted(files):
        if not files[name]:
            rows.append(f"{_shown_name(name, context)} (binary, or holds NUL bytes: it matches, not shown)")
            continue
        if num_shown >= MAX_MATCHES:
            break
        rows.append(_shown_name(name, context))
        last = 0
        for number, is_match, row in _rows(files[name]):
            if num_shown >= MAX_MATCHES and is_match:
                break
            if args.context and last and number > last + 1:
                rows.append("--")
            rows.append(f"L{number}{'|' if is_match else '-'}{row}")
            last = number
            num_shown += is_match
    if total > num_shown:
        num_files = sum(map(bool, files.values()))
        least = "" if is_whole else "at least "
        rows.append(
            f"({total - num_shown:,} more matches; {least}{total:,} in {num_files} files in all. "
            "Narrow the pattern or the path.)"
        )
    if not is_whole:
        rows.append("(the search was stopped before its end; narrow the path)")
    return "\n".join(rows)
