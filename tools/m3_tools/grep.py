"""The `grep` tool: lines that match a regular expression, found by ripgrep."""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import posixpath
from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from m3_tools.base import TextBlock, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.glob import path_matcher
from m3_tools.paths import printable, relative_name, resolve_inside
from m3_tools.ripgrep import run_ripgrep
from m3_tools.text import shown

MAX_MATCHES = 200
MAX_LINE_CHARS = 300


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
        where = relative_name(context.root, resolve_inside(context.root, args.path))
        if not args.pattern or "\0" in args.pattern:
            raise ToolError("The pattern is empty or holds a NUL character.")
        options = ["--json", "--binary", f"--context={args.context}", *(["--ignore-case"] if args.ignore_case else [])]
        options += ["--fixed-strings"] if args.literal else []
        matcher = path_matcher(args.glob) if args.glob else None
        name_glob = posixpath.basename(args.glob) if args.glob else ""
        if name_glob and "**" not in name_glob:
            # As a file type and not as --glob, which would bring ignored files back.
            options += [f"--type-add=wanted:{name_glob}", "--type=wanted"]
        target = os.path.relpath(resolve_inside(context.root, args.path), context.root)
        globs = ["--glob=!.git", "--glob=!.m3"]
        result = await run_ripgrep(
            context, [*options, *globs, f"--regexp={args.pattern}", "--", target], include_ignored=args.include_ignored
        )
        files, problems = _collect(result.head)
        if matcher is not None:
            base = "" if where == "." else where + "/"
            files = {n: f for n, f in files.items() if matcher.match_file(n.removeprefix(base))}
        if result.exit_code == 2 and not files:
            raise ToolError("grep failed: " + "; ".join(problems[:6]))
        text = _render(args, files, result.timed_out)
        return ToolResult(text=text, display=(TextBlock(text=text, title=f"grep {printable(args.pattern)}"),))


def _collect(output: bytes) -> tuple[dict[str, _File], list[str]]:
    """What was found by file, and the lines that are not rg's JSON: its complaints."""
    files: dict[str, _File] = {}
    problems: list[str] = []
    for event in _events(output, problems):
        data = event.get("data", {})
        if event["type"] in ("match", "context"):
            file = files.setdefault(_name(data["path"]), _File())
            is_match = event["type"] == "match"
            file.num_matches += is_match
            spans = data["submatches"]
            content = _decoded(data["lines"]).rstrip("\n").rstrip("\r")
            row = _cut(
                content, len(_bytes(data["lines"])[: spans[0]["start"]].decode("utf-8", "replace")) if spans else 0
            )
            file.rows.append((data["line_number"], f"L{data['line_number']}{'|' if is_match else '-'}{row}"))
        elif event["type"] == "end" and data.get("binary_offset") is not None:
            files.setdefault(_name(data["path"]), _File()).binary = True  # line numbers after a NUL are off
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


def _name(value: dict[str, str]) -> str:
    return printable(posixpath.normpath(os.fsdecode(_bytes(value))))


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
