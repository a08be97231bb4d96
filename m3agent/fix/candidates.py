"""Candidate edits: made by the edit tool itself, kept as bytes, without what changes nothing or does not parse."""

from __future__ import annotations

import ast
import dataclasses
import difflib
import textwrap
import warnings
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


class CandidateMaker:
    """Makes candidates of proposals, one when it is wanted: the next is tried only if this one fails."""

    def __init__(self, root: Path, spill_dir: Path):
        self._root, self._spill_dir = root, spill_dir
        self._seen: set[tuple[str, str]] = set()
        self._suspects: set[Suspect] = set()

    async def make(self, proposal: Proposal) -> Candidate | None:
        """The proposal as bytes; the file in the work tree is as before afterwards.

        None for an edit that the tool refuses, that changes nothing in meaning, does not parse, leaves the suspect's
        file, or says the same as one that was made before.
        """
        suspect = proposal.suspect
        if proposal.call.arguments.get("path") != suspect.path:
            return None
        file = self._root / suspect.path
        before = file.read_bytes()
        context = ToolContext(root=self._root, spill_dir=self._spill_dir)
        try:
            result = await call_tool(EditLineTool(), proposal.call.arguments, context)
            after = file.read_bytes()
        finally:
            if file.read_bytes() != before:
                file.write_bytes(before)
        if suspect not in self._suspects:
            self._suspects.add(suspect)
            self._seen.add((suspect.path, meaning(suspect, before, suspect.last_line)))
        num_more = after.count(b"\n") - before.count(b"\n")
        said = meaning(suspect, after, suspect.last_line + num_more)
        key = (suspect.path, said)
        if result.is_error or not said or key in self._seen:
            return None
        self._seen.add(key)
        diff = unified_diff(suspect.path, before, after)
        return Candidate(proposal=proposal, path=suspect.path, before=before, after=after, result=result, diff=diff)


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


def meaning(suspect: Suspect, data: bytes, last_line: int) -> str:
    """What the suspect's lines say, without layout and comments; empty if the file is broken.

    For Python the syntax tree of the definition, with what else stands up to `last_line`, where the suspect's lines
    end in `data`: the file's other lines are the same in every candidate. For other languages the text of the file.
    """
    if not suspect.path.endswith((".py", ".pyi")):
        return data.decode("utf-8", "surrogateescape")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a candidate may look odd; that is for the tests to judge
            tree = ast.parse(data)
            found = _definition_at(tree, suspect.first_line)
            said = f"{suspect.symbol} {ast.dump(found or tree)}"
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    outside = b"\n".join(data.split(b"\n")[found.end_lineno or 0 : last_line]) if found else b""
    return f"{said}\n{_dumped(outside.decode('utf-8', 'surrogateescape'))}"


def _dumped(lines: str) -> str:
    """The syntax tree of some lines that may stand deeper than a file's; the lines themselves if they have none."""
    try:
        return ast.dump(ast.parse(textwrap.dedent(lines)))
    except (SyntaxError, ValueError):
        return lines


def _definition_at(tree: ast.Module, line: int) -> ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | None:
    """The function or class that begins at this line, with its decorators or without."""
    node: ast.AST = tree
    while True:
        children = (child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))
        inside = next((child for child in children if _first_line(child) <= line <= (child.end_lineno or 0)), None)
        if inside is None:
            return None
        begins = line in (inside.lineno, _first_line(inside))
        if isinstance(inside, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and begins:
            return inside
        node = inside


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def unified_diff(path: str, before: bytes, after: bytes) -> str:
    """The change as a person reads it."""
    old, new = (data.decode("utf-8", "replace").splitlines(keepends=True) for data in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", n=3)
    return "".join(line if line.endswith("\n") else line + "\n\\ No newline at end of file\n" for line in lines)
