"""Injected bugs: one place of a piece of Python is damaged, its formatting kept, and the repairing edit is known.

A bug is made by a span edit found on the syntax tree, so that everything else stays as the author wrote it. The classes
live in `training.slips` (something is wrong) and `training.omissions` (something is missing); this module chooses
among them, applies an edit and states the repair as one `edit_line` call would make it.
"""

from __future__ import annotations

import ast
import dataclasses
import random
import warnings
from collections.abc import Mapping
from typing import Literal

from training.omissions import OMISSIONS
from training.slips import SLIPS
from training.syntax import Maker, Parsed, Span

MAYBE_EQUAL = frozenset({"parentheses", "string", "swapped", "copied", "slice", "dropped_condition", "wrapping"})
"""Classes whose edit can change the text and not the syntax tree; only these pay for the comparison."""

Action = Literal["replace", "insert", "delete"]

MAX_REPAIR_LINES = 4

MAKERS: dict[str, Maker] = {**SLIPS, **OMISSIONS}

DEFAULT_MIX: dict[str, float] = {
    "deleted_line": 13, "dropped_expression": 14, "dropped_argument": 7, "dropped_wrapper": 6, "initial_value": 6,
    "dropped_return": 1, "dropped_condition": 3,
    "variable": 8, "attribute": 4, "family": 3, "constant": 4, "comparison": 4, "arithmetic": 3, "boolean": 1.5,
    "condition": 3, "assignment": 1, "swapped": 4, "index": 2, "slice": 1.5, "range": 1, "default": 1, "returned": 2,
    "exception": 1, "loop_control": 0.6, "string": 1, "self_await": 1.5, "typo": 1.5, "wrapping": 2, "copied": 2.5,
    "added_line": 2, "parentheses": 0.6,
}  # fmt: skip
"""Weights of the classes: half of the bugs miss content, since those repairs are the hardest to learn."""


@dataclasses.dataclass(frozen=True, slots=True)
class Repair:
    """The edit that undoes a bug: `line` counts from 1 in the buggy source; 0 with `insert` is before its first
    line."""

    action: Action
    line: int
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Bug:
    """A damaged source, the class of the damage, and its repair.

    `first` and `removed`, `added`: from line `first` (0-based) `removed` lines of the original became the `added`
    lines.
    """

    source: str
    kind: str
    repair: Repair
    first: int
    removed: int
    added: tuple[str, ...]


def inject(
    source: str, rng: random.Random, mix: Mapping[str, float] | None = None, *, two_edits: float = 0.1, tries: int = 8
) -> Bug | None:
    """Damage one place of `source`; None when no class of the mix finds a place in a few tries.

    `mix` maps class names to weights (default `DEFAULT_MIX`); with probability `two_edits` the damaged line is damaged
    once more. Raises what `Parsed` raises.
    """
    parsed = Parsed(source)
    weights = DEFAULT_MIX if mix is None else mix
    kinds = list(weights)
    for kind in rng.choices(kinds, [weights[k] for k in kinds], k=tries):
        span = MAKERS[kind](parsed, rng)
        damaged = applied(parsed.data, span) if span is not None else None
        bug = describe(source, damaged, kind) if damaged is not None else None
        if bug is None or not _parses(bug.source) or (kind in MAYBE_EQUAL and same_tree(bug.source, source)):
            continue
        if len(bug.added) == 1 and rng.random() < two_edits:
            bug = _again(source, bug, rng) or bug
        return bug
    return None


def applied(data: bytes, span: Span) -> str | None:
    try:
        return (data[: span.start] + span.text + data[span.end :]).decode()
    except UnicodeDecodeError:
        return None


def describe(source: str, damaged: str, kind: str) -> Bug | None:
    """The bug as lines, with its repair; None if one `edit_line` call cannot undo it or only white space differs."""
    old, new = source.split("\n"), damaged.split("\n")
    first = 0
    while first < min(len(old), len(new)) and old[first] == new[first]:
        first += 1
    tail = 0
    while tail < min(len(old), len(new)) - first and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    removed, added = old[first : len(old) - tail], new[first : len(new) - tail]
    if "".join(removed).split() == "".join(added).split() or len(added) > 1 or len(removed) > MAX_REPAIR_LINES:
        return None
    text = "\n".join(removed)
    if not added:
        repair = Repair("insert", first, text)
    else:
        repair = Repair("replace", first + 1, text) if removed else Repair("delete", first + 1, "")
    return Bug(damaged, kind, repair, first, len(removed), tuple(added))


def repaired(source: str, repair: Repair) -> str:
    """`source` after the edit, as the `edit_line` tool makes it."""
    lines = source.split("\n")
    new = [] if repair.action == "delete" else repair.text.split("\n")
    at = repair.line if repair.action == "insert" else repair.line - 1
    lines[at : at if repair.action == "insert" else at + 1] = new
    return "\n".join(lines)


def same_tree(left: str, right: str) -> bool:
    """Whether two sources that parse have the same syntax tree."""
    return ast.dump(Parsed(left).tree) == ast.dump(Parsed(right).tree)


def _parses(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(("class _:\n" if source[:1] in (" ", "\t") else "") + source)
    except (SyntaxError, ValueError):
        return False
    return True


def _again(source: str, bug: Bug, rng: random.Random) -> Bug | None:
    """A second edit on the damaged line."""
    try:
        parsed = Parsed(bug.source, only_line=bug.first + 1)
    except SyntaxError:
        return None
    kinds = [k for k in DEFAULT_MIX if k not in ("deleted_line", "added_line")]
    for kind in rng.choices(kinds, [DEFAULT_MIX[k] for k in kinds], k=12):
        span = MAKERS[kind](parsed, rng)
        damaged = applied(parsed.data, span) if span is not None else None
        both = describe(source, damaged, f"{bug.kind}+{kind}") if damaged is not None else None
        if both is not None and both.first == bug.first and len(both.added) == 1 and _parses(both.source):
            return None if same_tree(both.source, source) else both
    return None
