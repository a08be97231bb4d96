"""Which calls may run. A mode is a value; the loop asks it before every call, so that no prompt text can widen it."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from m3_tools.base import Tool

Mode = Literal["plan", "ask", "edit", "auto"]
Verdict = Literal["allow", "ask", "refuse"]

EDITS = frozenset({"edit", "edit_line", "write"})
"""Tools that change files inside the work tree and nothing else."""
HARMLESS = frozenset({"todo"})
"""Tools that are not read-only but change nothing a person owns."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decision:
    """What happens to a call, and the rule that says so."""

    verdict: Verdict
    rule: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A call that needs a person: what is shown before it happens."""

    tool: str
    arguments: Mapping[str, Any]
    rule: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What the person said. `reason` goes to the model when the call is rejected."""

    accepted: bool
    reason: str = ""


Approver = Callable[[Question], Awaitable[Answer]]
"""Asks a person. Where nobody can answer there is none, and the call is refused."""


def decide(mode: Mode, tool: Tool[Any], *, unconfined: str = "") -> Decision:
    """Whether `tool` may run in this mode.

    plan reads only; ask lets a person see every change first; edit lets files inside the work tree change and the
    project's own tests run, and asks before commands; auto asks nothing. `unconfined` says why commands would run
    outside of a sandbox: then each command is asked for in every mode.
    """
    if unconfined and tool.name == "shell" and mode != "plan":
        return Decision(verdict="ask", rule=unconfined.rstrip("."))
    if mode == "auto":
        return Decision(verdict="allow", rule="auto mode: everything runs")
    if tool.read_only or tool.name in HARMLESS:
        return Decision(verdict="allow", rule="it changes nothing")
    if mode == "plan":
        return Decision(verdict="refuse", rule="plan mode only reads")
    if mode == "edit" and (tool.name in EDITS or tool.name == "test"):
        return Decision(verdict="allow", rule="edit mode: edits and tests are free")
    return Decision(verdict="ask", rule=f"{mode} mode: {tool.name} needs an approval")
