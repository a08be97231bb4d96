"""The `diff` tool: what the work tree changed since the last commit."""

from __future__ import annotations

import dataclasses
import os
from typing import ClassVar

from pydantic import Field

from m3_tools.base import DiffBlock, MissingPath, Tool, ToolArgs, ToolContext, ToolError, ToolResult
from m3_tools.change import unified_diff
from m3_tools.files import read_bytes
from m3_tools.git import diff_with_base, git_name, require_repository, run_git
from m3_tools.paths import printable, relative_name, resolve_inside
from m3_tools.text import shown

MAX_CHARS = 30_000
MAX_FILE_CHARS = 12_000
MAX_LINE_CHARS = 400
MAX_FILES = 200
_MAX_NEW_FILE_BYTES = 2**20
_KINDS = {"A": "added", "M": "changed", "D": "deleted", "T": "changed in kind", "U": "in conflict"}


class DiffArgs(ToolArgs):
    path: str = Field(default=".", description="file or folder, relative to the repository")


@dataclasses.dataclass(frozen=True, kw_only=True)
class _FileDiff:
    name: str
    what: str
    body: str

    def heading(self) -> str:
        _, _, hunks = self.body.partition("\n@@")
        rows = hunks.split("\n")
        added, removed = (sum(row.startswith(sign) for row in rows) for sign in "+-")
        return f"{self.name}: {self.what} (+{added} -{removed})"


class DiffTool(Tool[DiffArgs]):
    name: ClassVar[str] = "diff"
    description: ClassVar[str] = (
        "Show what the work tree changed since the last commit, staged or not, new files included: first the list of "
        f"files, then their diffs. At most {MAX_CHARS:,} characters; what is left out is named, ask for it with path. "
        "Ignored files do not count. Changes nothing."
    )
    args_type: ClassVar[type[ToolArgs]] = DiffArgs

    async def run(self, args: DiffArgs, context: ToolContext) -> ToolResult:
        path = resolve_inside(context.root, args.path)
        where, raw = relative_name(context.root, path), git_name(context, path)
        await require_repository(context)
        files = [*await _tracked(context, raw), *await _untracked(context, raw)]
        if not files:
            if not os.path.lexists(path):
                raise MissingPath(where, f"{where} does not exist, neither now nor in the last commit.")
            return ToolResult(text=f"No change in {where} since the last commit.")
        files = [_hidden(file) if context.secrets.guards(file.name) else file for file in files]
        files.sort(key=lambda file: file.name)
        blocks = tuple(DiffBlock(path=file.name, diff=file.body) for file in files[:MAX_FILES])
        return ToolResult(text=_render(files, alone=len(files) == 1), display=blocks)


async def _tracked(context: ToolContext, where: str) -> list[_FileDiff]:
    """The files that git knows and that differ from the last commit."""
    listed = await diff_with_base(context, where, "-z", "--name-status")
    if listed.exit_code != 0:
        raise ToolError(f"git diff failed: {' '.join(listed.text.split())[:400]}")
    fields = listed.head.split(b"\0")[:-1]
    states = [(os.fsdecode(name), state.decode()[:1]) for state, name in zip(fields[::2], fields[1::2], strict=True)]
    full = await diff_with_base(context, where, "--unified=3", "--src-prefix=a/", "--dst-prefix=b/")
    bodies = _bodies(full.head.decode("utf-8", "replace"))
    bodies += ["(too large to show)"] * (len(states) - len(bodies))
    return [
        _FileDiff(name=printable(name), what=_KINDS.get(state, "changed"), body=body)
        for (name, state), body in zip(states, bodies, strict=False)
    ]


def _bodies(text: str) -> list[str]:
    """The diff of each file, without git's own header lines."""
    bodies: list[list[str]] = []
    for line in text.split("\n"):
        if line.startswith("diff --git ") or line.startswith("diff --cc "):
            bodies.append([])
        elif bodies and not line.startswith("index "):
            bodies[-1].append(_row(line))
    return ["\n".join(rows).rstrip("\n") for rows in bodies]


def _row(line: str) -> str:
    line = shown(line)
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]} [… {len(line) - MAX_LINE_CHARS:,} more]"


async def _untracked(context: ToolContext, where: str) -> list[_FileDiff]:
    """The files that git does not know yet and does not ignore."""
    listed = await run_git(context, "ls-files", "--others", "--exclude-standard", "-z", "--", f":(literal){where}")
    found = []
    for raw in listed.head.split(b"\0")[:-1]:
        name = os.fsdecode(raw)
        if name.split("/")[0] == ".m3":
            continue
        path = context.root / name
        try:
            if path.is_symlink():
                body = f"(symlink to {printable(os.readlink(path))})"
            else:
                body = unified_diff(printable(name), None, read_bytes(path, printable(name), limit=_MAX_NEW_FILE_BYTES))
        except (ToolError, OSError) as error:
            body = f"({error})"
        found.append(_FileDiff(name=printable(name), what="new", body="\n".join(map(_row, body.split("\n")))))
    return found


def _hidden(file: _FileDiff) -> _FileDiff:
    return dataclasses.replace(file, body="(a file of secrets, not shown)")


def _render(files: list[_FileDiff], *, alone: bool) -> str:
    rows = [file.heading() for file in files[:MAX_FILES]]
    if len(files) > MAX_FILES:
        rows.append(f"(and {len(files) - MAX_FILES:,} more files)")
    num_chars, left_out = 0, []
    limit = MAX_CHARS if alone else MAX_FILE_CHARS
    for file in files:
        body = file.body if len(file.body) <= limit else file.body[:limit].rpartition("\n")[0]
        if num_chars + len(body) > MAX_CHARS:
            left_out.append(file.name)
            continue
        num_chars += len(body)
        rows += ["", body]
        if len(body) < len(file.body):
            rows.append(f"(cut: {file.body.count(chr(10)) - body.count(chr(10)):,} more lines of {file.name})")
    if left_out:
        more = f" and {len(left_out) - 20:,} more" if len(left_out) > 20 else ""
        rows += ["", f"(not shown for length: {', '.join(left_out[:20])}{more}; ask with path)"]
    return "\n".join(rows)
