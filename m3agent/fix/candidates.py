"""Candidate edits: made by the edit tool itself, kept as bytes, cleared of what changes nothing or does not parse."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import warnings
from collections.abc import Iterable
from pathlib import Path

from m3_tools.base import ToolContext, ToolResult, call_tool
from m3_tools.edit_line import EditLineTool
from m3agent.fix.suspects import Suspect
from m3agent.messages import ToolCall


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proposal:
    """An edit that the model wrote or ranked. `score` is log P(read this suspect) + log P(this edit | the code)."""

    suspect: Suspect
    call: ToolCall
    score: float
    is_mutation: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """An edit that can be tried: `before` and `after` are the whole file; `result` is what the edit tool said."""

    proposal: Proposal
    path: str
    before: bytes
    after: bytes
    result: ToolResult
    diff: str
    meaning: str
    """What the file then says; two candidates with the same path and meaning are one."""


async def make_candidates(proposals: Iterable[Proposal], root: Path, spill_dir: Path) -> list[Candidate]:
    """The proposals that can be tried, in the given order; the files in `root` are as before afterwards.

    Dropped: edits that the tool refuses, that change nothing in meaning, that do not parse, that leave the suspect's
    file, and those whose result has the same syntax tree as an earlier one.
    """
    seen: set[tuple[str, str]] = set()
    made: list[Candidate] = []
    for proposal in proposals:
        path = proposal.suspect.path
        if proposal.call.arguments.get("path") != path:
            continue
        file = root / path
        before = file.read_bytes()
        seen.add((path, meaning(path, before)))
        context = ToolContext(root=root, spill_dir=spill_dir)
        try:
            result = await call_tool(EditLineTool(), proposal.call.arguments, context)
            after = file.read_bytes()
        finally:
            if file.read_bytes() != before:
                file.write_bytes(before)
        key = (path, meaning(path, after))
        if result.is_error or not key[1] or key in seen:
            continue
        seen.add(key)
        diff = unified_diff(path, before, after)
        made.append(
            Candidate(
                proposal=proposal, path=path, before=before, after=after, result=result, diff=diff, meaning=key[1]
            )
        )
    return made


def touches_run_code(proposal: Proposal) -> bool:
    """Whether the edited line belongs to a statement that a failing test ran, or to the function's head."""
    number = line_number(str(proposal.call.arguments.get("line", "")))
    ran = sorted(proposal.suspect.ran_lines)
    if number is None or not ran:
        return True
    # Only the first line of a statement is recorded; the lines up to the next recorded one may belong to it, but a
    # long gap is a branch that was not taken.
    return number <= ran[0] or any(line <= number <= line + 2 for line in ran)


def line_number(label: str) -> int | None:
    """34 for `L34|`, `L34` and `34`; None for anything else."""
    digits = label.strip().removeprefix("L").removesuffix("|")
    return int(digits) if digits.isdecimal() else None


def meaning(path: str, data: bytes) -> str:
    """What the file says, without layout and comments: the syntax tree of Python, else the text; empty if broken."""
    if not path.endswith((".py", ".pyi")):
        return data.decode("utf-8", "surrogateescape")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a candidate may look odd; that is for the tests to judge
            return ast.dump(ast.parse(data))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""


def unified_diff(path: str, before: bytes, after: bytes) -> str:
    """The change as a person reads it."""
    old, new = (data.decode("utf-8", "replace").splitlines(keepends=True) for data in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", n=3)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)
