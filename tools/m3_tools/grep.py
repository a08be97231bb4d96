"""The `grep` tool: lines that match a regular expression, found by ripgrep."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import itertools
import json
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from pathspec import GitIgnoreSpec
from pydantic import Field

from m3_tools.base import MissingPath, TextBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.glob import path_matcher
from m3_tools.paths import printable, resolve_for_reading, shown_name
from m3_tools.ripgrep import run_ripgrep
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


@dataclasses.dataclass
class _File:
    rows: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    num_matches: int = 0
    binary: bool = False


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
        options = ["--json", "--binary", f"--context={args.context}"]
        result = await run_ripgrep(context, search.arguments(options), include_ignored=args.include_ignored)
        files, problems = _collect(result.head, context)
        files = {name: file for name, file in files.items() if search.wants(name)}
        guarded = [name for name in files if context.secrets.guards(name)]
        for name in guarded:
            del files[name]
        if result.exit_code == 2 and not files:
            raise ToolError(_complaint(args.pattern, problems))
        text = _render(args, files, result.timed_out)
        if guarded:
            text += f"\n({_plural(len(guarded), 'file')} of secrets not searched)"
        if not files and not result.timed_out:
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
    return _Search(
        pattern=args.pattern,
        target=os.path.relpath(path, context.root),
        options=tuple(options),
        matcher=path_matcher(glob) if glob or excluded else None,
        excluded=excluded,
        base="" if where == "." else where + "/",
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
    found = await asyncio.gather(*(_count(args.model_copy(update={name: True}), context) for name in wider))
    return "".join(f" With {name}=true it matches {count}." for name, count in zip(wider, found, strict=True) if count)


async def _count(args: GrepArgs, context: ToolContext) -> str:
    """How much a search finds within a short time: `3 lines in 2 files`, or nothing."""
    search = _search(args, context)
    options = search.arguments(["--count", "--null", "--no-messages", "--with-filename"])
    result = await run_ripgrep(context, options, include_ignored=args.include_ignored, timeout_s=_SECOND_LOOK_S)
    rows = re.findall(rb"([^\0\n][^\0]*)\0(\d+)\n", result.head)
    names = [(_name_of(path, context), int(count)) for path, count in rows]
    counts = [count for name, count in names if search.wants(name) and not context.secrets.guards(name)]
    least = "at least " if result.timed_out else ""
    return f"{least}{_plural(sum(counts), 'line')} in {_plural(len(counts), 'file')}" if counts else ""


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _collect(output: bytes, context: ToolContext) -> tuple[dict[str, _File], list[str]]:
    """What was found by file, and the lines that are not rg's JSON: its complaints."""
    files: dict[str, _File] = {}
    problems: list[str] = []
    for event in _events(output, problems):
        data = event.get("data", {})
        if event["type"] in ("match", "context"):
            file = files.setdefault(_name(data["path"], context), _File())
            is_match = event["type"] == "match"
            file.num_matches += is_match
            spans = data["submatches"]
            content = _decoded(data["lines"]).rstrip("\n").rstrip("\r")
            row = _cut(
                content, len(_bytes(data["lines"])[: spans[0]["start"]].decode("utf-8", "replace")) if spans else 0
            )
            file.rows.append((data["line_number"], f"L{data['line_number']}{'|' if is_match else '-'}{row}"))
        elif event["type"] == "end" and data.get("binary_offset") is not None:
            files.setdefault(_name(data["path"], context), _File()).binary = True  # line numbers after a NUL are off
    return {n: f for n, f in files.items() if f.num_matches}, problems


def _events(output: bytes, problems: list[str]) -> Iterator[dict[str, Any]]:
    for line in output.splitlines():
        if line.startswith(b'{"type":'):
            try:
                yield json.loads(line)
            except ValueError:  # cut off where the output limit was reached
                continue
        elif line.strip():
            problems.append(shown(line.decode("utf-8", "replace")))


def _bytes(value: dict[str, str]) -> bytes:
    return value["text"].encode() if "text" in value else base64.b64decode(value["bytes"])


def _decoded(value: dict[str, str]) -> str:
    return _bytes(value).decode("utf-8", "replace")


def _name(value: dict[str, str], context: ToolContext) -> str:
    return _name_of(_bytes(value), context)


def _name_of(path: bytes, context: ToolContext) -> str:
    return shown_name(context, Path(os.path.normpath(os.path.join(os.path.realpath(context.root), os.fsdecode(path)))))


def _cut(content: str, match_start: int) -> str:
    if len(content) <= MAX_LINE_CHARS:
        return shown(content)
    first = max(0, min(match_start - MAX_LINE_CHARS // 3, len(content) - MAX_LINE_CHARS))
    piece = shown(content[first : first + MAX_LINE_CHARS])
    left = len(content) - first - MAX_LINE_CHARS
    return (f"[{first:,} characters …] " if first else "") + piece + (f" [… {left:,} characters]" if left > 0 else "")


def _render(args: GrepArgs, files: dict[str, _File], timed_out: bool) -> str:
    hint = "" if args.include_ignored else " (ignored files were not searched)"
    total = sum(f.num_matches for f in files.values() if not f.binary)
    if not files:
        return f"No match for {args.pattern!r} in {printable(args.path)}{hint}." + (
            " The search was stopped; narrow it." if timed_out else ""
        )
    rows: list[str] = []
    num_shown = 0
    for name in sorted(files):
        file = files[name]
        if file.binary:
            rows.append(f"{name} (binary, or holds NUL bytes: {file.num_matches} matches in it, not shown)")
            continue
        if num_shown >= MAX_MATCHES:
            break
        rows.append(name)
        last = 0
        for number, row in sorted(file.rows):
            if num_shown >= MAX_MATCHES and row.startswith(f"L{number}|"):
                break
            if args.context and last and number > last + 1:
                rows.append("--")
            rows.append(row)
            last = number
            num_shown += row.startswith(f"L{number}|")
    if total > num_shown:
        num_files = sum(not f.binary for f in files.values())
        rows.append(
            f"({total - num_shown:,} more matches; {total:,} in {num_files} files in all. "
            "Narrow the pattern or the path.)"
        )
    if timed_out:
        rows.append("(the search was stopped at its deadline; narrow the path)")
    return "\n".join(rows)
